#include "base/event_loop.h"

#include <dirent.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/file_descriptor.h"
#include "tests/base/child.h"
#include "tests/base/log_capture.h"

namespace verbena::base {
namespace {

constexpr int64_t kTestTimeoutMs = 10'000;

void nap() {
  std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

template <typename Condition>
bool becomes_true(Condition condition) {
  const Deadline deadline = Deadline::after_ms(kTestTimeoutMs);
  while (!deadline.has_passed()) {
    if (condition()) return true;
    nap();
  }
  return false;
}

struct SocketPair {
  SocketPair() {
    int fds[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
    near_end.reset(fds[0]);
    far_end.reset(fds[1]);
  }
  FileDescriptor near_end, far_end;
};

void count_call(void* context) {
  static_cast<std::atomic<int>*>(context)->fetch_add(1);
}

// An event descriptor with what its callback needs.
struct Event {
  FileDescriptor fd{eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  std::atomic<int> calls{0};

  void raise() const {
    const uint64_t one = 1;
    EXPECT_EQ(write(fd.get(), &one, sizeof one), static_cast<ssize_t>(sizeof one));
  }
  static void drain(void* context) {
    auto* event = static_cast<Event*>(context);
    uint64_t value = 0;
    if (read(event->fd.get(), &value, sizeof value) == sizeof value) event->calls.fetch_add(1);
  }
};

// Whether a thread of the loop's name exists in this process.
bool has_watcher_thread() {
  DIR* tasks = opendir("/proc/self/task");
  bool found = false;
  while (const dirent* task = readdir(tasks)) {
    std::ifstream file("/proc/self/task/" + std::string(task->d_name) + "/comm");
    std::string name;
    std::getline(file, name);
    found |= name == "verbena-events";
  }
  closedir(tasks);
  return found;
}
// A thread that was joined may be seen for a moment longer.
bool loses_watcher_thread() {
  return becomes_true([] { return !has_watcher_thread(); });
}

TEST(EventLoop, CallsBackForEveryEvent) {
  EventLoop loop;
  Event event;
  ASSERT_TRUE(loop.watch(event.fd.get(), Interest::kReadable, &Event::drain, &event));
  for (int i = 1; i <= 3; ++i) {
    event.raise();
    EXPECT_TRUE(becomes_true([&] { return event.calls == i; }));
  }
  loop.unwatch(event.fd.get());
  event.raise();
  nap();
  EXPECT_EQ(event.calls, 3);
}

TEST(EventLoop, ReportsAClosedPeerOnceEvenWithUnreadData) {
  EventLoop loop;
  SocketPair pair;
  std::atomic<int> calls{0};
  ASSERT_TRUE(loop.watch(pair.near_end.get(), Interest::kPeerClosed, &count_call, &calls));
  ASSERT_EQ(write(pair.far_end.get(), "x", 1), 1);
  nap();
  EXPECT_EQ(calls, 0) << "data alone is no reason to call";
  pair.far_end.reset();
  EXPECT_TRUE(becomes_true([&] { return calls > 0; }));
  for (int i = 0; i < 20; ++i) nap();
  EXPECT_EQ(calls, 1) << "the loop spins on a closed peer";
  loop.unwatch(pair.near_end.get());
}

TEST(EventLoop, ReportsAPeerThatClosedBeforeItWasWatched) {
  EventLoop loop;
  SocketPair pair;
  std::atomic<int> calls{0};
  pair.far_end.reset();
  ASSERT_TRUE(loop.watch(pair.near_end.get(), Interest::kPeerClosed, &count_call, &calls));
  EXPECT_TRUE(becomes_true([&] { return calls == 1; }));
  loop.unwatch(pair.near_end.get());
}

TEST(EventLoop, ReportsNewDataOnceForEachArrivalAndAHangUpOnce) {
  EventLoop loop;
  SocketPair pair;
  std::atomic<int> calls{0};
  ASSERT_TRUE(loop.watch(pair.near_end.get(), Interest::kNewData, &count_call, &calls));
  for (int i = 1; i <= 2; ++i) {
    ASSERT_EQ(write(pair.far_end.get(), "x", 1), 1);  // never read
    EXPECT_TRUE(becomes_true([&] { return calls == i; }));
  }
  pair.far_end.reset();
  EXPECT_TRUE(becomes_true([&] { return calls == 3; }));
  for (int i = 0; i < 20; ++i) nap();
  EXPECT_EQ(calls, 3) << "the loop spins on a closed peer";
  loop.unwatch(pair.near_end.get());
}

TEST(EventLoop, ReportsRoomToSendAfterThereWasNone) {
  EventLoop loop;
  SocketPair pair;
  std::atomic<int> calls{0};
  ASSERT_TRUE(loop.watch(pair.near_end.get(), Interest::kDataOrRoom, &count_call, &calls));
  EXPECT_TRUE(becomes_true([&] { return calls == 1; })) << "there is some";
  std::array<char, 4096> bytes{};
  const auto fill = [&] {
    while (send(pair.near_end.get(), bytes.data(), bytes.size(), MSG_DONTWAIT) > 0) continue;
  };
  fill();
  for (int i = 0; i < 20; ++i) nap();
  EXPECT_EQ(calls, 1) << "the loop spins";
  while (recv(pair.far_end.get(), bytes.data(), bytes.size(), MSG_DONTWAIT) > 0) continue;
  EXPECT_TRUE(becomes_true([&] { return calls > 1; }));
  loop.unwatch(pair.near_end.get());
}

TEST(EventLoop, ThreadLivesAsLongAsSomethingIsWatched) {
  EventLoop loop;
  Event first, second;
  EXPECT_TRUE(loses_watcher_thread());
  ASSERT_TRUE(loop.watch(first.fd.get(), Interest::kReadable, &Event::drain, &first));
  ASSERT_TRUE(loop.watch(second.fd.get(), Interest::kReadable, &Event::drain, &second));
  EXPECT_TRUE(has_watcher_thread());
  loop.unwatch(first.fd.get());
  EXPECT_TRUE(has_watcher_thread());
  EXPECT_EQ(loop.count_watched(), 1u);
  loop.unwatch(second.fd.get());
  EXPECT_TRUE(loses_watcher_thread());
  ASSERT_TRUE(loop.watch(first.fd.get(), Interest::kReadable, &Event::drain, &first));
  first.raise();
  EXPECT_TRUE(becomes_true([&] { return first.calls == 1; }));
}

TEST(EventLoop, DestructionStopsTheThread) {
  Event event;
  {
    EventLoop loop;
    ASSERT_TRUE(loop.watch(event.fd.get(), Interest::kReadable, &Event::drain, &event));
  }
  EXPECT_TRUE(loses_watcher_thread());
}

// The callback touches memory that is freed right after unwatch: a sanitizer finds a call that runs on.
TEST(EventLoop, UnwatchWaitsForARunningCallback) {
  struct Slow {
    Event event;
    std::atomic<bool> entered{false}, left{false};
    static void run(void* context) {
      auto* slow = static_cast<Slow*>(context);
      slow->entered = true;
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      Event::drain(&slow->event);
      slow->left = true;
    }
  };
  EventLoop loop;
  Event other;  // keeps the thread alive, so that it is not the join that waits
  ASSERT_TRUE(loop.watch(other.fd.get(), Interest::kReadable, &Event::drain, &other));
  auto slow = std::make_unique<Slow>();
  ASSERT_TRUE(loop.watch(slow->event.fd.get(), Interest::kReadable, &Slow::run, slow.get()));
  slow->event.raise();
  ASSERT_TRUE(becomes_true([&] { return slow->entered.load(); }));
  loop.unwatch(slow->event.fd.get());
  EXPECT_TRUE(slow->left);
  slow.reset();
  loop.unwatch(other.fd.get());
}

TEST(EventLoop, RefusesBadAndDoubleDescriptors) {
  const LogCapture capture;
  EventLoop loop;
  Event event;
  EXPECT_EQ(loop.watch(-1, Interest::kReadable, &Event::drain, &event).status(), Status::kSystem);
  EXPECT_TRUE(loses_watcher_thread());
  ASSERT_TRUE(loop.watch(event.fd.get(), Interest::kReadable, &Event::drain, &event));
  EXPECT_EQ(loop.watch(event.fd.get(), Interest::kReadable, &Event::drain, &event).status(), Status::kSystem);
  EXPECT_EQ(loop.count_watched(), 1u);
  loop.unwatch(4711);
  loop.unwatch(event.fd.get());
  loop.unwatch(event.fd.get());
  EXPECT_EQ(loop.count_watched(), 0u);
}

TEST(EventLoop, ServesThreadsThatComeAndGo) {
  EventLoop loop;
  std::vector<std::thread> threads;
  std::atomic<int> served{0};
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 50; ++round) {
        auto event = std::make_unique<Event>();
        if (!loop.watch(event->fd.get(), Interest::kReadable, &Event::drain, event.get())) return;
        event->raise();
        if (round % 2 == 0 && becomes_true([&] { return event->calls == 1; })) served.fetch_add(1);
        loop.unwatch(event->fd.get());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(served, 4 * 25);
  EXPECT_EQ(loop.count_watched(), 0u);
}

#ifndef __SANITIZE_THREAD__  // TSAN does not follow a fork of a program with threads
// A forked child has no watcher thread; leaving it through exit() must not wait for one.
TEST(EventLoop, ForkedChildCanExit) {
  Event event;
  ASSERT_TRUE(EventLoop::instance().watch(event.fd.get(), Interest::kReadable, &Event::drain, &event));
  // A sanitizer's locks of a thread that is only just starting would stay locked in the child.
  event.raise();
  ASSERT_TRUE(becomes_true([&] { return event.calls == 1; }));
  nap();
  EXPECT_EQ(run_child([]() -> int {
              alarm(5);
              std::exit(0);
            }),
            0);
  EventLoop::instance().unwatch(event.fd.get());
}

// The epoll set is one for both: what a child takes out of it would be missing here.
TEST(EventLoop, AForkedChildUnwatchesNothingOfItsParent) {
  Event event;
  ASSERT_TRUE(EventLoop::instance().watch(event.fd.get(), Interest::kReadable, &Event::drain, &event));
  const int status = run_child([&] {
    alarm(5);
    EventLoop::instance().unwatch(event.fd.get());
    Event own;
    const bool is_watched =
        EventLoop::instance().watch(own.fd.get(), Interest::kReadable, &Event::drain, &own).is_ok();
    own.raise();
    const bool is_told = is_watched && becomes_true([&] { return own.calls == 1; });
    EventLoop::instance().unwatch(own.fd.get());
    return is_told ? 0 : 1;
  });
  EXPECT_EQ(status, 0);
  event.raise();
  EXPECT_TRUE(becomes_true([&] { return event.calls == 1; }));
  EventLoop::instance().unwatch(event.fd.get());
}
#endif

}  // namespace
}  // namespace verbena::base
