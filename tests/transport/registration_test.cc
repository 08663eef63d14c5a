// Registrations of many connections on shared devices: what the devices are asked for, from several threads,
// while some calls are slow or fail. Over `tests/verbs/faulty`, which knows every region that lives.
#include "transport/memory/registration.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <future>
#include <random>

#include "base/log.h"
#include "transport/support/connection.h"
#include "transport/support/faulty_devices.h"

namespace verbena::transport {
namespace {

using verbs::faulty::Hooks;
using Made = std::unique_ptr<Registration>;

constexpr size_t kPageBytes = 4096;
constexpr size_t kPages = 64;
constexpr int kThreads = 8;

class RegistrationTest : public testing::Test {
 protected:
  ~RegistrationTest() override {
    hooks_.slow_length_bytes = 0;
    hooks_.failing_call = 0;
    hooks_.most_regions = INT32_MAX;
    EXPECT_EQ(regions(), 0);
  }

  base::Result<Made> attempt(const Nic& nic, size_t first, size_t pages) {
    return register_on_rails(nic, memory_.data() + first * kPageBytes, pages * kPageBytes, false, -1, 0);
  }
  Made make(const Nic& nic, size_t first, size_t pages) {
    auto made = attempt(nic, first, pages);
    EXPECT_TRUE(made);
    return made ? std::move(*made) : nullptr;
  }
  std::future<Made> make_aside(const Nic& nic, size_t first, size_t pages) {
    return std::async(std::launch::async, [=, this, &nic] {
      auto made = attempt(nic, first, pages);
      return made ? std::move(*made) : nullptr;
    });
  }
  // The peer could write to every byte of it, by every rail.
  bool is_reachable(const Nic& nic, const Registration& made) const {
    for (size_t rail = 0; rail < nic.rails.size(); ++rail) {
      if (!hooks_.reaches(nic.rails[rail]->domain(), made.regions[rail].remote_key(), made.address,
                          made.length_bytes))
        return false;
    }
    return true;
  }
  int regions() const { return hooks_.live_regions - regions_before_; }
  void expect_slow_call() {
    EXPECT_TRUE(poll_until([&] { return hooks_.slow_calls != 0; }));
  }
  // What a connection's service thread does, at random. Returns how many registrations it made.
  int churn(const Nic& nic, unsigned seed) {
    std::mt19937 random(seed);
    std::vector<Made> held;
    int made_count = 0;
    for (int step = 0; step < 1500; ++step) {
      if (held.size() < 6 && random() % 2 == 0) {
        const size_t first = random() % kPages, pages = 1 + random() % (kPages - first);
        auto made = attempt(nic, first, pages);
        if (!made) continue;
        held.push_back(std::move(*made));
        ++made_count;
      } else if (!held.empty()) {
        std::swap(held[random() % held.size()], held.back());
        EXPECT_TRUE(is_reachable(nic, *held.back()));
        held.pop_back();
      }
      EXPECT_TRUE(held.empty() || is_reachable(nic, *held[random() % held.size()]));
    }
    return made_count;
  }
  int churn_on_threads(const std::vector<const Nic*>& nics) {
    std::vector<std::future<int>> threads;
    for (unsigned i = 0; i < kThreads; ++i) {
      threads.push_back(
          std::async(std::launch::async, [&, i] { return churn(*nics[i % nics.size()], i + 1); }));
    }
    int made = 0;
    for (auto& thread : threads) made += thread.get();
    return made;
  }

  Hooks& hooks_ = find_hooks();
  Host host_{choose_faulty_devices()};
  std::vector<std::byte> memory_ = std::vector<std::byte>(kPages * kPageBytes);
  const int regions_before_ = hooks_.live_regions;
};

TEST_F(RegistrationTest, DevicesShareThePortsTheyHaveInCommon) {
  const Nic &one = host_.nic(1, 1), &two = host_.nic(2, 0), &others = host_.nic(2, 2);
  const Made joined = make(two, 0, 8);
  EXPECT_EQ(regions(), 2);
  const Made single = make(one, 2, 3);
  EXPECT_EQ(regions(), 2);
  EXPECT_EQ(single->regions[0].remote_key(), joined->regions[1].remote_key());
  const Made other = make(others, 0, 8);
  EXPECT_EQ(regions(), 4);
}

TEST_F(RegistrationTest, AMhandleIsItsOwn) {
  const Nic& nic = host_.nic();
  Made first = make(nic, 0, 8), second = make(nic, 2, 2);
  EXPECT_EQ(regions(), 1);
  EXPECT_EQ(second->address, memory_.data() + 2 * kPageBytes);
  EXPECT_TRUE(second->covers(memory_.data() + 2 * kPageBytes, 2 * kPageBytes));
  EXPECT_FALSE(second->covers(memory_.data(), kPageBytes));
  first.reset();
  EXPECT_TRUE(is_reachable(nic, *second));
}

TEST_F(RegistrationTest, ARailThatFailsLeavesNothing) {
  const Nic& nic = host_.nic(4);
  const Made held = make(nic, 0, 4);  // which the next overlaps
  ASSERT_EQ(regions(), 4);
  for (int rail = 0; rail < 4; ++rail) {
    hooks_.calls = 0;
    hooks_.failing_call = rail + 1;
    const auto refused = attempt(nic, 2, 4);
    hooks_.failing_call = 0;
    ASSERT_FALSE(refused) << rail;
    EXPECT_EQ(refused.error().errno_value, ENOMEM);
    EXPECT_EQ(regions(), 4) << rail;
    EXPECT_TRUE(is_reachable(nic, *held));
  }
  const Made retried = make(nic, 2, 4);
  EXPECT_EQ(regions(), 8);
}

// One inode is one dma-buf. Nothing here has a real one: the devices refuse it, and take the pointer.
TEST_F(RegistrationTest, ADmabufIsKnownByItsInode) {
  const Nic& nic = host_.nic();
  const int buffer = memfd_create("one", 0), copy = dup(buffer), other = memfd_create("another", 0);
  ASSERT_TRUE(buffer >= 0 && copy >= 0 && other >= 0);
  const auto make_from = [&](size_t page, size_t pages, int fd, uint64_t offset_pages) {
    return take(register_on_rails(nic, memory_.data() + page * kPageBytes, pages * kPageBytes, true, fd,
                                  offset_pages * kPageBytes),
                "a registration");
  };
  const Made whole = make_from(0, 8, buffer, 4);
  const Made same = make_from(0, 8, copy, 4), part = make_from(3, 2, copy, 7);
  EXPECT_EQ(regions(), 1);
  const Made elsewhere = make_from(3, 2, copy, 4);
  EXPECT_EQ(regions(), 2);
  const Made foreign = make_from(0, 8, other, 4);
  EXPECT_EQ(regions(), 3);
  for (const int fd : {buffer, copy, other}) close(fd);
}

TEST_F(RegistrationTest, ASlowOneHoldsUpWhoWantsTheSameOnly) {
  const Nic& nic = host_.nic();
  hooks_.slow_calls = hooks_.made_regions = 0;
  hooks_.slow_length_bytes = 9 * kPageBytes;
  auto slow = make_aside(nic, 0, 9);
  expect_slow_call();
  auto same = make_aside(nic, 0, 9), part = make_aside(nic, 4, 2);
  auto apart = make_aside(nic, 20, 2), overlapping = make_aside(nic, 8, 4);
  const bool are_free = poll_until([&] {
    return apart.wait_for(std::chrono::seconds(0)) == std::future_status::ready &&
           overlapping.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  });
  EXPECT_TRUE(are_free);
  EXPECT_NE(part.wait_for(std::chrono::seconds(0)), std::future_status::ready);
  hooks_.slow_length_bytes = 0;
  const Made made[] = {slow.get(), same.get(), part.get(), apart.get(), overlapping.get()};
  EXPECT_EQ(regions(), 3);
  EXPECT_EQ(hooks_.made_regions, 3);
  for (const Made& each : made) EXPECT_TRUE(each != nullptr && is_reachable(nic, *each));
}

TEST_F(RegistrationTest, WhoWaitedForAFailureTriesForItself) {
  const Nic& nic = host_.nic();
  hooks_.slow_calls = hooks_.calls = 0;
  hooks_.failing_call = 1;
  hooks_.slow_length_bytes = 9 * kPageBytes;
  auto slow = make_aside(nic, 0, 9);
  expect_slow_call();
  std::vector<std::future<Made>> waiting;
  for (size_t i = 0; i < 4; ++i) waiting.push_back(make_aside(nic, i, 3));
  usleep(20'000);  // they come to wait, most likely; all that follows holds if they do not
  hooks_.slow_length_bytes = 0;
  EXPECT_EQ(slow.get(), nullptr);
  for (auto& each : waiting) {
    const Made made = each.get();
    EXPECT_TRUE(made != nullptr && is_reachable(nic, *made));
  }
}

// The first caller deregisters as soon as it has its region; the callers that waited keep it.
TEST_F(RegistrationTest, TheFirstMayLeaveFirst) {
  const Nic& nic = host_.nic();
  for (int round = 0; round < 50; ++round) {
    hooks_.slow_calls = 0;
    hooks_.slow_length_bytes = 9 * kPageBytes;
    auto first = make_aside(nic, 0, 9);
    expect_slow_call();
    auto second = make_aside(nic, 1, 2);
    hooks_.slow_length_bytes = 0;
    first.get().reset();
    const Made made = second.get();
    ASSERT_TRUE(made != nullptr && is_reachable(nic, *made));
  }
}

TEST_F(RegistrationTest, ManyThreadsShareAndLeave) {
  hooks_.made_regions = 0;
  const int registrations = churn_on_threads({&host_.nic(2, 0), &host_.nic(1, 0), &host_.nic(2, 1)});
  EXPECT_EQ(regions(), 0);
  EXPECT_LT(hooks_.made_regions, registrations) << "some were shared";
}

// As many regions as a limit on locked memory leaves; all threads run into it over and over.
TEST_F(RegistrationTest, ManyThreadsWithRefusals) {
  hooks_.most_regions = hooks_.live_regions + 10;
  base::set_log_sink([](base::LogLevel, const char*, int, const char*) {});  // a warning each
  churn_on_threads({&host_.nic(3, 0), &host_.nic(2, 1)});
  base::set_log_sink(nullptr);
  EXPECT_EQ(regions(), 0);
}

}  // namespace
}  // namespace verbena::transport
