// Whatever the system refuses while a queue is made, the caller is told, the process lives, and it can make a
// queue afterwards.
#include <poll.h>
#include <sys/syscall.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <iostream>
#include <set>
#include <system_error>
#include <thread>

#include "message_queue/support/queues.h"
#include "tests/base/log_capture.h"
#include "tests/base/refused_calls.h"

namespace verbena::message_queue {
namespace {

constexpr uint64_t kChunkBytes = 256;

// By a call that is not refused.
size_t count_descriptors() {
  std::vector<pollfd> polled(1024);
  for (size_t i = 0; i < polled.size(); ++i) polled[i].fd = static_cast<int>(i);
  ::poll(polled.data(), polled.size(), 0);
  return static_cast<size_t>(
      std::ranges::count_if(polled, [](const pollfd& one) { return (one.revents & POLLNVAL) == 0; }));
}

// What can fail for lack of something, or because a profile forbids it.
const std::vector<int> kCalls = {SYS_socket,          SYS_bind,      SYS_listen,        SYS_connect,
                                 SYS_accept4,         SYS_openat,    SYS_read,          SYS_newfstatat,
                                 SYS_memfd_create,    SYS_ftruncate, SYS_fcntl,         SYS_mmap,
                                 SYS_getrandom,       SYS_eventfd2,  SYS_epoll_create1, SYS_epoll_ctl,
                                 SYS_pidfd_open,      SYS_clone3,    SYS_clone,         SYS_sendto,
                                 SYS_recvfrom,        SYS_recvmsg,   SYS_sendmsg,       SYS_prlimit64,
                                 SYS_set_robust_list, SYS_fstat};

std::atomic<int> g_thrown{0};

// As the C API does: exceptions are told, too.
template <typename Call>
auto attempt(const Call& call) -> decltype(call()) {
  try {
    return call();
  } catch (const std::exception&) {
    ++g_thrown;
    return base::Error{};
  }
}

// The test's own, which may be refused as well.
template <typename Body>
std::thread start_thread(const Body& body) {
  try {
    return std::thread(body);
  } catch (const std::system_error&) {
    return std::thread(body);
  }
}

// Whether both ends came to be and three messages went through. Each end tries twice to get ready.
bool make_queue(const std::string& reader_host) {
  auto writer = attempt([] { return Writer::create({.shape = {1, 4, kChunkBytes}, .bind = {}}); });
  if (!writer) return false;
  std::atomic<bool> is_reader_over{false};
  bool is_written = false;
  std::thread writing = start_thread([&] {
    base::Outcome ready = base::Error{};
    while (!ready && !is_reader_over) ready = attempt([&] { return (*writer)->wait_until_ready(20); });
    is_written = ready && send_all(**writer, 3, kChunkBytes);
    while (!is_reader_over) ::poll(nullptr, 0, 1);
    writer = base::Error{};
  });
  bool is_read = false;
  {
    if (!reader_host.empty()) pose_as_host(reader_host);
    const auto reader = attempt([&] { return Reader::attach((*writer)->handle(), 0, 0); });
    for (int i = 0; reader && i < 2 && !is_read; ++i) {
      const auto ready = attempt([&] { return (*reader)->wait_until_ready(kPatienceMs); });
      is_read = ready && read_all(**reader, 3, kChunkBytes) == 3;
    }
  }
  is_reader_over = true;
  writing.join();
  return is_read && is_written;
}

// Of two queues one after the other at most one meets the refusal. 0: as it should be.
int make_two_queues(const std::string& reader_host) {
  base::LogCapture log;
  const size_t descriptors = count_descriptors();
  const bool is_made = make_queue(reader_host), is_made_then = make_queue(reader_host);
  if (!is_made && !is_made_then) return 1;
  if ((!is_made || !is_made_then) && log.warnings().empty() && g_thrown == 0) return 2;
  return count_descriptors() == descriptors ? 0 : 3;
}

void refuse_each(const std::string& reader_host, int error) {
  const base::OneRefused refusing(kCalls, error);
  ASSERT_TRUE(make_queue(""));  // what is opened once a process
  std::set<int> refused;
  for (uint32_t number = 0;; ++number) {
    const auto run = refusing.run(
        number, [&] { return make_two_queues(reader_host); }, 20'000);
    if (!run) GTEST_SKIP() << "this kernel hands no system calls to another process";
    ASSERT_EQ(run->code, 0) << "call " << run->call << ", the " << number << "th that could be refused";
    if (run->call < 0) break;
    refused.insert(run->call);
  }
  std::cout << refused.size() << " kinds of calls\n";
  EXPECT_TRUE(refused.contains(SYS_memfd_create) && refused.contains(SYS_socket) &&
              refused.contains(SYS_mmap));
}

TEST(QueueCreation, EachStepRefusedOnOneHost) {
  refuse_each("", ENOMEM);
}
TEST(QueueCreation, EachStepRefusedOnTwoHosts) {
  refuse_each("elsewhere", EMFILE);
}

}  // namespace
}  // namespace verbena::message_queue
