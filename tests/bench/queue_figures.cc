// What the message queue takes, between processes of this host: latencies, bandwidth, idle processor time,
// how soon a dead reader is named; and a long run whose every byte is checked. No test: for
// docs/measurements.
//
// usage: queue_figures latency|bandwidth|idle|death|exact|wake READERS BYTES SPIN_US MESSAGES GAP_US [REMOTE]
// wake: without a queue, what the kernel takes to wake sleeping processes, from the futex call until the last
// one runs
#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "base/clock.h"
#include "verbena/message_queue.h"

namespace {

using verbena::base::monotonic_ns;

constexpr uint64_t kMaxBytes = 20 << 20;

struct Run {
  std::string mode;
  uint32_t readers;
  uint64_t bytes;
  int64_t spin_us;
  uint64_t messages;
  int64_t gap_us;
  bool is_remote;
};

void check(verbena_result result) {
  if (result == VERBENA_SUCCESS) return;
  std::fprintf(stderr, "%s\n", verbena_last_error());
  std::_Exit(1);
}

// On-processor time of this process, by the kernel's scheduler.
int64_t processor_ns() {
  int64_t ns = 0;
  std::ifstream("/proc/self/schedstat") >> ns;
  return ns;
}

// 1 byte to 20 MiB: most are short, as decisions are; one in a thousand is long.
uint64_t length_of(uint64_t number) {
  uint64_t state = (number + 1) * 0x9e37'79b9'7f4a'7c15;
  state ^= state >> 29;
  state *= 0xbf58'476d'1ce4'e5b9;
  state ^= state >> 32;
  const uint64_t most = number % 1000 == 999 ? kMaxBytes : number % 10 == 9 ? 65536 : 256;
  return 1 + state % most;
}
// A message is a window of one random block; where it begins is the message's number.
size_t begin_of(uint64_t number) {
  return number * 7919 % kMaxBytes;
}
const std::vector<char>& block() {
  static const auto* const made = [] {
    auto* all = new std::vector<char>(2 * kMaxBytes);
    uint64_t state = 1;
    for (char& byte : *all) {
      state ^= state << 13, state ^= state >> 7, state ^= state << 17;
      byte = static_cast<char>(state);
    }
    return all;
  }();
  return *made;
}

void report(const char* what, std::vector<double> values, const char* unit) {
  std::sort(values.begin(), values.end());
  const auto at = [&](double part) {
    return values[static_cast<size_t>(part * static_cast<double>(values.size() - 1))];
  };
  std::printf("%s: median %.2f %s, p10 %.2f, p90 %.2f, p99 %.2f, least %.2f, most %.2f (%zu)\n", what,
              at(0.5), unit, at(0.1), at(0.9), at(0.99), values.front(), values.back(), values.size());
}

// What no queue with sleeping readers can be faster than.
int measure_wake(const Run& run) {
  struct Shared {
    std::atomic<uint32_t> turn;
    std::atomic<uint32_t> awake;
    std::atomic<int64_t> last_ns;
  };
  void* const memory =
      mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return 1;
  auto* const shared = new (memory) Shared{};
  const auto futex = [&](int operation, uint32_t value) {
    return syscall(SYS_futex, &shared->turn, operation, value, nullptr, nullptr, 0);
  };
  for (uint32_t reader = 0; reader < run.readers; ++reader) {
    if (fork() != 0) continue;
    for (uint32_t turn = 0; turn < run.messages; ++turn) {
      while (shared->turn.load() == turn) futex(FUTEX_WAIT, turn);
      const int64_t now_ns = monotonic_ns();
      int64_t last_ns = shared->last_ns.load();
      while (last_ns < now_ns && !shared->last_ns.compare_exchange_weak(last_ns, now_ns)) continue;
      shared->awake.fetch_add(1);
    }
    std::_Exit(0);
  }
  std::vector<double> values;
  for (uint32_t turn = 1; turn <= run.messages; ++turn) {
    usleep(static_cast<useconds_t>(run.gap_us));
    const int64_t began_ns = monotonic_ns();
    shared->turn.store(turn);
    futex(FUTEX_WAKE, INT32_MAX);
    while (shared->awake.load() < turn * run.readers) usleep(100);
    values.push_back(static_cast<double>(shared->last_ns.load() - began_ns) * 1e-3);
  }
  while (wait(nullptr) > 0) continue;
  report("wake to the last process", values, "us");
  return 0;
}

void read_messages(const Run& run, verbena_queue* queue, int64_t* arrived_ns, int64_t* spent_ns) {
  std::vector<char> copy(run.bytes);
  if (run.mode == "idle") spent_ns[0] = processor_ns();
  for (uint64_t number = 0; number < run.messages; ++number) {
    verbena_queue_message message;
    check(verbena_queue_dequeue(queue, -1, &message));
    arrived_ns[number] = monotonic_ns();
    if (run.mode == "bandwidth") std::memcpy(copy.data(), message.data, message.length);
    if (run.mode == "exact" &&
        (message.length != length_of(number) ||
         std::memcmp(message.data, block().data() + begin_of(number), message.length) != 0)) {
      std::printf("message %llu is wrong\n", static_cast<unsigned long long>(number));
      std::_Exit(1);
    }
    check(verbena_queue_release(queue, message.ticket));
  }
  if (run.mode == "bandwidth") arrived_ns[run.messages - 1] = monotonic_ns();
  if (run.mode == "idle") spent_ns[0] = processor_ns() - spent_ns[0];
}

// When a process has ended, by one of the highest priority, where that is allowed, that does nothing else.
class EndWatch {
 public:
  explicit EndWatch(pid_t watched) {
    shared_ = static_cast<std::atomic<int64_t>*>(
        mmap(nullptr, sizeof(*shared_), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    pid_ = fork();
    if (pid_ != 0) return;
    const sched_param priority{.sched_priority = 50};
    sched_setscheduler(0, SCHED_FIFO, &priority);
    pollfd end{static_cast<int>(syscall(SYS_pidfd_open, watched, 0)), POLLIN, 0};
    shared_->store(1);
    poll(&end, 1, -1);
    shared_->store(monotonic_ns());
    std::_Exit(0);
  }
  void await_begin() const {
    while (shared_->load() == 0) usleep(100);
  }
  int64_t ended_ns() const {
    waitpid(pid_, nullptr, 0);
    return shared_->load();
  }

 private:
  std::atomic<int64_t>* shared_;
  pid_t pid_;
};

int measure(const Run& run) {
  if (run.mode == "exact") block();
  const size_t times = run.readers * (run.messages + 1);
  auto* const shared = static_cast<int64_t*>(
      mmap(nullptr, times * sizeof(int64_t), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  int pipes[2];
  if (shared == MAP_FAILED || pipe(pipes) != 0) return 1;
  // Readers are forked before this process has a thread or the library's settings.
  std::vector<pid_t> pids;
  for (uint32_t reader = 0; reader < run.readers; ++reader) {
    pids.push_back(fork());
    if (pids.back() != 0) continue;
    if (run.is_remote) setenv("VERBENA_HOSTID", "elsewhere", 1);
    verbena_queue_handle handle;
    if (read(pipes[0], &handle, sizeof(handle)) != sizeof(handle)) std::_Exit(1);
    verbena_queue* queue = nullptr;
    check(verbena_queue_attach(&handle, reader, run.spin_us, &queue));
    check(verbena_queue_wait_until_ready(queue, -1));
    read_messages(run, queue, shared + reader * (run.messages + 1),
                  shared + (reader + 1) * (run.messages + 1) - 1);
    check(verbena_queue_destroy(queue));
    std::_Exit(0);
  }
  verbena_queue* queue = nullptr;
  const verbena_queue_options options = {
      run.readers, 10,      run.mode == "exact" ? 1u << 20 : std::max<uint64_t>(run.bytes, 64),
      run.spin_us, nullptr, nullptr};
  check(verbena_queue_create(&options, &queue));
  verbena_queue_handle handle;
  check(verbena_queue_get_handle(queue, &handle));
  for (uint32_t reader = 0; reader < run.readers; ++reader) {
    if (write(pipes[1], &handle, sizeof(handle)) != sizeof(handle)) return 1;
  }
  check(verbena_queue_wait_until_ready(queue, -1));
  const std::vector<char> data(run.bytes, 'v');
  std::vector<int64_t> sent_ns(run.messages);
  const int64_t began_ns = monotonic_ns(), began_cpu_ns = processor_ns();
  if (run.mode == "death") {
    const EndWatch watch(pids[0]);
    watch.await_begin();
    const verbena_queue_part part{data.data(), data.size()};
    const int64_t killed_ns = monotonic_ns();
    kill(pids[0], SIGKILL);
    while (verbena_queue_enqueue(queue, &part, 1, -1) == VERBENA_SUCCESS) usleep(100);
    const int64_t named_ns = monotonic_ns();
    std::printf("named after %.3f ms; the process had ended after %.3f ms: %s\n",
                static_cast<double>(named_ns - killed_ns) * 1e-6,
                static_cast<double>(watch.ended_ns() - killed_ns) * 1e-6, verbena_last_error());
    for (const pid_t pid : pids) kill(pid, SIGKILL);
    return 0;
  }
  uint64_t total_bytes = 0;
  for (uint64_t number = 0; number < run.messages; ++number) {
    if (run.mode == "idle") poll(nullptr, 0, static_cast<int>(run.gap_us / 1000));
    if (run.mode == "latency") {
      const int64_t until_ns = monotonic_ns() + run.gap_us * 1000;
      if (run.gap_us >= 1000) usleep(static_cast<useconds_t>(run.gap_us));
      while (monotonic_ns() < until_ns) continue;
    }
    verbena_queue_part part{data.data(), data.size()};
    if (run.mode == "exact") part = {block().data() + begin_of(number), length_of(number)};
    total_bytes += part.length;
    sent_ns[number] = monotonic_ns();
    check(verbena_queue_enqueue(queue, &part, 1, -1));
  }
  const int64_t writer_cpu_ns = processor_ns() - began_cpu_ns;
  int failed = 0;
  for (const pid_t pid : pids) {
    int status = 0;
    waitpid(pid, &status, 0);
    failed += status != 0;
  }
  const double seconds = static_cast<double>(monotonic_ns() - began_ns) * 1e-9;
  std::vector<double> values;
  for (uint64_t number = 0; number < run.messages; ++number) {
    int64_t last_ns = 0;
    for (uint32_t reader = 0; reader < run.readers; ++reader)
      last_ns = std::max(last_ns, shared[reader * (run.messages + 1) + number]);
    if (number >= run.messages / 10) values.push_back(static_cast<double>(last_ns - sent_ns[number]) * 1e-3);
  }
  if (run.mode == "latency") report("enqueue to the last reader", values, "us");
  if (run.mode == "bandwidth") {  // of the last nine tenths: the first fault in the pages
    const uint64_t first = run.messages / 10;
    int64_t first_ns = INT64_MAX, last_ns = 0;
    for (uint32_t reader = 0; reader < run.readers; ++reader) {
      const int64_t* const arrived_ns = shared + reader * (run.messages + 1);
      first_ns = std::min(first_ns, arrived_ns[first]);
      last_ns = std::max(last_ns, arrived_ns[run.messages - 1]);
    }
    std::printf(
        "%.2f GB/s to each of %u readers, which copy it once\n",
        static_cast<double>((run.messages - first) * run.bytes) / static_cast<double>(last_ns - first_ns),
        run.readers);
  }
  if (run.mode == "idle") {
    for (uint32_t reader = 0; reader < run.readers; ++reader)
      std::printf("reader %u: %.3f ms on a processor in %.1f s\n", reader,
                  static_cast<double>(shared[(reader + 1) * (run.messages + 1) - 1]) * 1e-6, seconds);
    std::printf("writer: %.3f ms\n", static_cast<double>(writer_cpu_ns) * 1e-6);
  }
  if (run.mode == "exact") {
    std::printf("%llu messages, %.1f GB, %u readers, in order and exact: %s, %.1f s\n",
                static_cast<unsigned long long>(run.messages), static_cast<double>(total_bytes) * 1e-9,
                run.readers, failed == 0 ? "yes" : "NO", seconds);
  }
  check(verbena_queue_destroy(queue));
  return failed == 0 ? 0 : 1;
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 7) {
    std::fprintf(
        stderr,
        "usage: queue_figures latency|bandwidth|idle|death|exact|wake READERS BYTES SPIN_US MESSAGES "
        "GAP_US [REMOTE]\n");
    return 2;
  }
  const auto number = [&](int i) { return std::strtoll(arguments[i], nullptr, 10); };
  const Run run{arguments[1], static_cast<uint32_t>(number(2)), static_cast<uint64_t>(number(3)),
                number(4),    static_cast<uint64_t>(number(5)), number(6),
                count > 7};
  return run.mode == "wake" ? measure_wake(run) : measure(run);
}
