// Readers and writers are killed at any time: all others name the dead one and continue.
#include <gmock/gmock.h>
#include <poll.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>

#include <cstdlib>
#include <thread>

#include "message_queue/support/queues.h"
#include "tests/base/log_capture.h"

namespace verbena::message_queue {
namespace {

using base::LogCapture;
using base::Status;

constexpr uint64_t kChunkBytes = 256;

base::Outcome send_until_it_fails(Writer& writer) {
  for (uint64_t number = 0;; ++number) {
    if (auto sent = send(writer, make_message(number, kChunkBytes)); !sent) return sent;
    ::poll(nullptr, 0, 1);
  }
}

void kill_a_reader(bool is_remote) {
  auto writer = make_writer(2, 4, kChunkBytes);
  Processes readers(2, [&](uint32_t number) {
    if (is_remote) pose_as_host("elsewhere");
    auto reader = attach(writer->handle(), number);
    for (;;) {
      const auto message = reader->dequeue(kPatienceMs);
      if (!message) return message.error().status == Status::kRemote ? 0 : 1;
      if (number == 1 && is_remote) raise(SIGKILL);
      if (number == 1) ::poll(nullptr, 0, -1);  // holds it for ever
      if (!reader->release(message->ticket)) return 2;
    }
  });
  ASSERT_TRUE(writer->wait_until_ready(kPatienceMs));
  // The writer waits for the slot or writes; it notices the death in both cases.
  std::thread killer([&] {
    if (!is_remote) ::poll(nullptr, 0, 20), readers.kill(1);
  });
  LogCapture log;
  EXPECT_EQ(send_until_it_fails(*writer).status(), Status::kRemote);
  killer.join();
  EXPECT_THAT(log.warnings(),
              testing::ElementsAre(testing::AllOf(testing::HasSubstr("reader 1 (process "),
                                                  testing::HasSubstr("is dead or unreachable"))));
  EXPECT_EQ(send(*writer, {}).status(), Status::kRemote);  // until the application handles it
  ASSERT_TRUE(writer->drop_reader(1));
  EXPECT_TRUE(send_all(*writer, 100, kChunkBytes));
  writer.reset();
  EXPECT_THAT(readers.await(kPatienceMs), testing::ElementsAre(0, 128 + SIGKILL));
}

TEST(QueueDeath, AReaderIsNamedAndDropped) {
  kill_a_reader(false);
}
TEST(QueueDeath, AReaderOverTcpIsNamedAndDropped) {
  kill_a_reader(true);
}

// Its forked child keeps the connection open: the process's own end is noticed.
TEST(QueueDeath, AReaderWithAChildIsNamed) {
  auto writer = make_writer(1, 4, kChunkBytes);
  Processes readers(1, [&](uint32_t number) {
    auto reader = attach(writer->handle(), number);
    const pid_t parent = getpid();
    if (fork() == 0) {
      while (getppid() == parent) ::poll(nullptr, 0, 1);
      ::poll(nullptr, 0, 3000);
      _exit(0);
    }
    raise(SIGKILL);
    return 0;
  });
  ASSERT_TRUE(writer->wait_until_ready(kPatienceMs));
  LogCapture log;
  EXPECT_EQ(send_until_it_fails(*writer).status(), Status::kRemote);
  EXPECT_THAT(log.warnings(), testing::ElementsAre(testing::HasSubstr("reader 0 (process ")));
}

// While a process's memory is taken apart its connection stands and it has not ended; here it is held there
// for as long as it takes, by its first thread's exit under ptrace.
TEST(QueueDeath, AReaderIsNamedBeforeItHasEnded) {
  auto writer = make_writer(1, 4, kChunkBytes);
  const pid_t pid = fork();
  if (pid == 0) {
    auto reader = attach(writer->handle(), 0);
    if (ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) _exit(3);
    raise(SIGSTOP);
    _exit(0);
  }
  ASSERT_TRUE(writer->wait_until_ready(kPatienceMs));
  int status = 0;
  ASSERT_EQ(waitpid(pid, &status, 0), pid);
  if (!WIFSTOPPED(status)) GTEST_SKIP() << "this process may not trace its children";
  ASSERT_EQ(ptrace(PTRACE_SETOPTIONS, pid, nullptr, PTRACE_O_TRACEEXIT), 0);
  ASSERT_EQ(kill(pid, SIGKILL), 0);
  ASSERT_EQ(waitpid(pid, &status, 0), pid);
  ASSERT_EQ(status >> 8, SIGTRAP | (PTRACE_EVENT_EXIT << 8));
  LogCapture log;
  EXPECT_EQ(send_until_it_fails(*writer).status(), Status::kRemote);
  EXPECT_THAT(log.warnings(), testing::ElementsAre(testing::HasSubstr("reader 0 (process ")));
  ptrace(PTRACE_CONT, pid, nullptr, nullptr);
  EXPECT_EQ(waitpid(pid, &status, 0), pid);
  EXPECT_TRUE(WIFSIGNALED(status));
}

void kill_the_writer(bool is_remote) {
  int pipe_fds[2];
  ASSERT_EQ(pipe(pipe_fds), 0);
  Processes writing(1, [&](uint32_t) {
    auto writer = make_writer(1, 4, kChunkBytes);
    if (write(pipe_fds[1], &writer->handle(), sizeof(Handle)) != sizeof(Handle)) return 1;
    if (!writer->wait_until_ready(kPatienceMs) || !send_all(*writer, 3, kChunkBytes)) return 2;
    ::poll(nullptr, 0, 20);
    raise(SIGKILL);
    return 0;
  });
  Processes reading(1, [&](uint32_t) {
    Handle handle;
    if (read(pipe_fds[0], &handle, sizeof(handle)) != sizeof(handle)) return 1;
    if (is_remote) pose_as_host("elsewhere");
    auto reader = attach(handle, 0);
    if (read_all(*reader, 3, kChunkBytes) != 3) return 2;
    LogCapture log;
    for (int i = 0; i < 2; ++i)
      if (reader->dequeue(kForever).error().status != Status::kRemote) return 3;
    return log.warnings()[0].find("(process ") != std::string::npos &&
                   log.warnings()[0].find("is dead or unreachable") != std::string::npos
               ? 0
               : 4;
  });
  EXPECT_THAT(reading.await(kPatienceMs), testing::Each(0));
  EXPECT_THAT(writing.await(kPatienceMs), testing::Each(128 + SIGKILL));
  close(pipe_fds[0]);
  close(pipe_fds[1]);
}

TEST(QueueDeath, TheWriterIsNamed) {
  kill_the_writer(false);
}
TEST(QueueDeath, TheWriterOverTcpIsNamed) {
  kill_the_writer(true);
}

// Two of four are killed somewhere in the middle; what the others read is whole.
TEST(QueueDeath, ReadersKilledAtAnyTime) {
  constexpr int kRounds = 20;
  constexpr uint64_t kMessages = 400;
  LogCapture log;
  std::srand(24);
  for (int round = 0; round < kRounds; ++round) {
    auto writer = make_writer(4, 3, kChunkBytes);
    Processes readers(4, [&](uint32_t number) {
      auto reader = attach(writer->handle(), number);
      return read_all(*reader, kMessages, kChunkBytes) == kMessages ? 0 : 1;
    });
    ASSERT_TRUE(writer->wait_until_ready(kPatienceMs));
    std::thread killer([&] {
      for (const uint32_t number : {1, 3}) {
        std::this_thread::sleep_for(std::chrono::microseconds(std::rand() % 2000));
        readers.kill(number);
      }
    });
    for (uint64_t number = 0; number < kMessages;) {
      const auto sent = send(*writer, make_message(number, kChunkBytes));
      if (sent) {
        ++number;
        continue;
      }
      ASSERT_EQ(sent.status(), Status::kRemote);
      // The first that is named, which cannot be one that lives.
      const std::string line = log.warnings().back();
      const auto dead = static_cast<uint32_t>(std::stoi(line.substr(line.find("reader ") + 7)));
      ASSERT_TRUE(dead == 1 || dead == 3) << line;
      ASSERT_TRUE(writer->drop_reader(dead));
    }
    killer.join();
    const auto codes = readers.await(kPatienceMs);
    EXPECT_EQ(codes[0], 0);
    EXPECT_EQ(codes[2], 0);
  }
}

TEST(QueueDeath, WhoDoesNotComeIsNamed) {
  auto writer = make_writer(4, 4, kChunkBytes);
  Processes readers(2, [&](uint32_t number) {
    auto reader = take(Reader::attach(writer->handle(), 2 * number, 0), "reader");
    return reader->wait_until_ready(kPatienceMs).status() == Status::kRemote ? 0 : 1;
  });
  LogCapture log;
  EXPECT_EQ(writer->wait_until_ready(300).status(), Status::kTimeout);
  EXPECT_THAT(log.warnings(), testing::ElementsAre(
                                  testing::HasSubstr("readers attached in time; the missing readers are: ")));
  writer.reset();
  EXPECT_THAT(readers.await(kPatienceMs), testing::Each(0));
}

// The writer is done before its reader has looked up: what it wrote is read all the same.
TEST(QueueDeath, AWriterThatIsGoneAtOnce) {
  for (int round = 0; round < 50; ++round) {
    auto writer = make_writer(1, 4, kChunkBytes);
    auto reader = take(Reader::attach(writer->handle(), 0, 0), "reader");
    LogCapture log;
    ASSERT_EQ(reader->wait_until_ready(0).status(), Status::kTimeout);  // it has introduced itself at most
    std::thread writing([&] {
      EXPECT_TRUE(writer->wait_until_ready(kPatienceMs));
      EXPECT_TRUE(send_all(*writer, 3, kChunkBytes));
      writer.reset();
    });
    EXPECT_TRUE(reader->wait_until_ready(kPatienceMs));
    EXPECT_EQ(read_all(*reader, 3, kChunkBytes), 3u);
    EXPECT_EQ(reader->dequeue(kForever).error().status, Status::kRemote);
    writing.join();
  }
}

TEST(QueueDeath, WhoDiesBeforeAllHaveComeIsNamed) {
  auto writer = make_writer(2, 4, kChunkBytes);
  Processes readers(1, [&](uint32_t) {
    auto reader = take(Reader::attach(writer->handle(), 1, 0), "reader");
    (void)reader->wait_until_ready(300);
    raise(SIGKILL);
    return 0;
  });
  LogCapture log;
  EXPECT_EQ(writer->wait_until_ready(kPatienceMs).status(), Status::kRemote);
  EXPECT_THAT(log.warnings(), testing::ElementsAre(testing::HasSubstr("reader 1 (process ")));
}

}  // namespace
}  // namespace verbena::message_queue
