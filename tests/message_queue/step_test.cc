// A reader, or the writer, is killed before each instruction of what it does in the library that ships: it
// runs one at a time under ptrace. Whatever it leaves in the shared memory, the others are told who is dead,
// go on, and read whole messages only.
#include <fcntl.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <functional>
#include <iostream>
#include <thread>

#include "message_queue/support/queues.h"
#include "tests/base/log_capture.h"

namespace verbena::message_queue {
namespace {

using base::LogCapture;
using base::Status;

constexpr uint64_t kChunkBytes = 256;

// A forked process that this thread steps through between its two marks.
class Stepped {
 public:
  enum class Stop : uint8_t { kStep, kAsleep, kEnd };

  // `prepare` runs as ever, what it returns is stepped through.
  explicit Stepped(const std::function<std::function<void()>()>& prepare) : pid_(fork()) {
    if (pid_ != 0) return;
    if (ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) _exit(3);
    const auto body = prepare();
    raise(SIGSTOP);
    body();
    raise(SIGSTOP);
    _exit(0);
  }
  ~Stepped() {
    if (pid_ > 0) kill();
  }
  Stepped(const Stepped&) = delete;
  Stepped& operator=(const Stepped&) = delete;

  pid_t pid() const { return pid_; }
  // It stands at its first mark.
  bool await_begin() {
    int status = 0;
    return waitpid(pid_, &status, 0) == pid_ && WIFSTOPPED(status) && WSTOPSIG(status) == SIGSTOP;
  }
  // kAsleep: it waits for somebody, within an instruction that goes on by itself.
  Stop step() {
    if (!is_under_way_) ptrace(PTRACE_SINGLESTEP, pid_, nullptr, nullptr);
    is_under_way_ = true;
    for (;;) {
      int status = 0;
      if (waitpid(pid_, &status, WNOHANG) == pid_) {
        is_under_way_ = false;
        return WIFSTOPPED(status) && WSTOPSIG(status) == SIGTRAP ? Stop::kStep : Stop::kEnd;
      }
      if (sleeps()) return Stop::kAsleep;
      std::this_thread::yield();
    }
  }
  void kill() {
    ::kill(pid_, SIGKILL);
    int status = 0;
    while (waitpid(pid_, &status, 0) == pid_ && WIFSTOPPED(status)) continue;
    pid_ = -1;
  }

 private:
  bool sleeps() const {
    std::string text;
    std::getline(std::ifstream("/proc/" + std::to_string(pid_) + "/stat"), text);
    return text.find(") S ") != std::string::npos;
  }

  pid_t pid_;
  bool is_under_way_ = false;
};

bool can_trace() {
  Stepped probe([] { return [] {}; });
  return probe.await_begin();
}

// Steps `count` times, or until the end, which it tells. A sleeper is woken once it counted as a step.
bool run_steps(Stepped& stepped, uint32_t count, const std::function<void()>& wake) {
  bool was_asleep = false;
  for (uint32_t i = 0; i < count; ++i) {
    const auto stop = stepped.step();
    if (stop == Stepped::Stop::kEnd) return true;
    if (stop != Stepped::Stop::kAsleep) continue;
    if (was_asleep) {
      --i;
    } else if (i + 1 < count) {
      wake();
    }
    was_asleep = true;
  }
  return false;
}

// Whether the reader was through before it was to be killed.
bool kill_reader_at(uint32_t step, bool finds_message) {
  auto writer = make_writer(2, 3, kChunkBytes);
  Stepped dying([&] {
    auto* const reader = attach(writer->handle(), 1).release();
    return [reader] {
      const auto message = reader->dequeue(kForever);
      if (message) (void)reader->release(message->ticket);
    };
  });
  std::unique_ptr<Reader> living;
  std::thread attaching([&] { living = attach(writer->handle(), 0); });
  EXPECT_TRUE(writer->wait_until_ready(kPatienceMs));
  attaching.join();
  EXPECT_TRUE(dying.await_begin());
  uint64_t sent = 0, read = 0;
  const auto send_one = [&] {
    const auto result = send(*writer, make_message(sent, kChunkBytes));
    if (result) ++sent;
    return result;
  };
  const auto read_one = [&] {
    const auto message = living->dequeue(kPatienceMs);
    EXPECT_TRUE(message && std::ranges::equal(message->bytes, make_message(read, kChunkBytes))) << step;
    if (message) {
      EXPECT_TRUE(living->release(message->ticket));
    }
    ++read;
  };
  if (finds_message) {
    EXPECT_TRUE(send_one());
  }
  const bool is_through = run_steps(dying, step, [&] { EXPECT_TRUE(send_one()); });
  const std::string name = "reader 1 (process " + std::to_string(dying.pid()) + ") is dead or unreachable";
  dying.kill();
  LogCapture log;
  for (;;) {
    const auto result = send_one();
    if (!result) {
      EXPECT_EQ(result.status(), Status::kRemote) << step;
      EXPECT_NE(log.warnings().back().find(name), std::string::npos) << step << ": " << log.warnings().back();
      break;
    }
    while (read < sent) read_one();
  }
  EXPECT_TRUE(writer->drop_reader(1));
  for (int i = 0; i < 5; ++i) {
    EXPECT_TRUE(send_one()) << step;
    while (read < sent) read_one();
  }
  return is_through;
}

bool kill_writer_at(uint32_t step) {
  constexpr uint64_t kLong = 6;  // make_message(): over several chunks
  int pipe_fds[2];
  if (pipe2(pipe_fds, O_CLOEXEC) != 0) return true;
  Stepped dying([&] {
    auto* const writer = make_writer(2, 4, kChunkBytes).release();
    if (write(pipe_fds[1], &writer->handle(), sizeof(Handle)) != sizeof(Handle)) _exit(1);
    if (!writer->wait_until_ready(kPatienceMs)) _exit(2);
    return [writer] { (void)send(*writer, make_message(kLong, kChunkBytes)); };
  });
  close(pipe_fds[1]);
  Handle handle;
  EXPECT_EQ(read(pipe_fds[0], &handle, sizeof(handle)), ssize_t{sizeof(handle)});
  std::unique_ptr<Reader> readers[2];
  std::thread attaching([&] { readers[1] = attach(handle, 1); });
  readers[0] = attach(handle, 0);
  attaching.join();
  EXPECT_TRUE(dying.await_begin());
  const bool is_through = run_steps(dying, step, [] {});
  dying.kill();
  LogCapture log;
  for (const auto& reader : readers) {
    auto message = reader->dequeue(kPatienceMs);
    if (message) {
      EXPECT_TRUE(std::ranges::equal(message->bytes, make_message(kLong, kChunkBytes))) << step;
      EXPECT_TRUE(reader->release(message->ticket));
      message = reader->dequeue(kPatienceMs);
    }
    EXPECT_EQ(message.error().status, Status::kRemote) << step;
  }
  close(pipe_fds[0]);
  return is_through;
}

// At every `stride`-th step until what is done is through.
void kill_everywhere(uint32_t stride, const std::function<bool(uint32_t)>& kill_at) {
  if (!can_trace()) GTEST_SKIP() << "this process may not trace its children";
  uint32_t step = 0;
  while (!kill_at(step) && !testing::Test::HasFailure()) step += stride;
  EXPECT_GT(step, 50u);  // it did step through something
  std::cout << "killed at " << step / stride << " places\n";
}

constexpr uint32_t kSparse = 127;  // no multiple of a loop's length, as far as one can tell

TEST(QueueSteps, AReaderThatFindsAMessage) {
  kill_everywhere(kSparse, [](uint32_t step) { return kill_reader_at(step, true); });
}
TEST(QueueSteps, AReaderThatSleeps) {
  kill_everywhere(kSparse, [](uint32_t step) { return kill_reader_at(step, false); });
}
TEST(QueueSteps, TheWriter) {
  kill_everywhere(kSparse, [](uint32_t step) { return kill_writer_at(step); });
}
TEST(QueueSteps, AReaderThatFindsAMessageAtEveryStep) {
  kill_everywhere(1, [](uint32_t step) { return kill_reader_at(step, true); });
}
TEST(QueueSteps, AReaderThatSleepsAtEveryStep) {
  kill_everywhere(1, [](uint32_t step) { return kill_reader_at(step, false); });
}
TEST(QueueSteps, TheWriterAtEveryStep) {
  kill_everywhere(1, [](uint32_t step) { return kill_writer_at(step); });
}

}  // namespace
}  // namespace verbena::message_queue
