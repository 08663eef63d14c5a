// Connections' work on their own NIC goes on when its queue pairs fail: what was not completed is done again.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/cuda_driver.h"
#include "base/log_capture.h"
#include "base/rails_file.h"
#include "protocol/random.h"
#include "transport/link/loopback.h"
#include "transport/support/host.h"

namespace verbena::transport {
namespace {

const tests::RailsFile rails_file;
// Before softverbs reads its environment, once.
const bool is_environment_set = setenv("SOFTVERBS_FAULTS",
                                       "seed 3; fail opcode=RDMA_READ chance=0.01 status=RETRY_EXC; "
                                       "fail opcode=RDMA_WRITE chance=0.005 status=GENERAL; "
                                       "fail opcode=RDMA_WRITE chance=0.005 status=RETRY_EXC work=done",
                                       1) == 0 &&
                                setenv("SOFTVERBS_RAILS", rails_file.path().c_str(), 1) == 0;

class LoopbackTest : public testing::Test {
 protected:
  static constexpr uint32_t kRails = 2, kOperations = 4000, kMaxBytes = 9000;

  LoopbackTest() { rails_file.write("* up\n"); }

  void copy(uint32_t rail, size_t from, size_t to, uint32_t bytes, uint32_t* outstanding) {
    loopback_->copy(rail, source_.bytes().data() + from, source_.registration()->regions[rail].local_key(),
                    target_.bytes().data() + to, target_.registration()->regions[rail].remote_key(), bytes,
                    outstanding);
  }
  void flush(uint32_t rail, uint32_t* outstanding) {
    loopback_->flush(rail, target_.bytes().data(), target_.registration()->regions[rail].remote_key(),
                     outstanding);
  }
  // False: it failed for good.
  bool wait_for(const uint32_t& outstanding) {
    const auto deadline = base::Deadline::after_ms(60'000);
    while (outstanding != 0 && !deadline.has_passed())
      if (!loopback_->poll(&failure_)) return false;
    EXPECT_EQ(outstanding, 0U);
    return true;
  }

  Host host_{{{"VERBENA_RAIL_RETRY_MS", "10"}, {"VERBENA_FAILOVER_TIMEOUT_MS", "1000"}}};
  const Nic& nic_ = host_.nic(kRails);
  Memory source_{nic_, 1 << 16}, target_{nic_, 1 << 16};
  std::unique_ptr<LoopbackUser> loopback_ =
      std::make_unique<LoopbackUser>(Loopback::acquire(base::kNoGpu, nic_));
  std::string failure_;
};

TEST_F(LoopbackTest, FailedWorkIsDoneAgain) {
  const base::LogCapture log;
  protocol::Random random(1);
  for (size_t i = 0; i < source_.bytes().size(); ++i)
    source_.bytes()[i] = static_cast<std::byte>(random.next());
  uint32_t flushes = 0;
  for (uint32_t i = 0; i < kOperations; ++i) {
    const auto rail = static_cast<uint32_t>(random.between(0, kRails - 1));
    while (!loopback_->has_room_to_copy(rail)) ASSERT_TRUE(loopback_->poll(&failure_)) << failure_;
    if (random.happens(50)) {
      flush(rail, &flushes);
      continue;
    }
    const auto bytes = static_cast<uint32_t>(random.between(1, kMaxBytes));
    const size_t from = random.between(0, kMaxBytes), to = random.between(0, kMaxBytes);
    uint32_t copies = 0;
    copy(rail, from, to, bytes, &copies);
    ASSERT_TRUE(wait_for(copies)) << failure_;
    ASSERT_EQ(std::memcmp(target_.bytes().data() + to, source_.bytes().data() + from, bytes), 0);
    std::memset(target_.bytes().data() + to, 0, bytes);
  }
  ASSERT_TRUE(wait_for(flushes)) << failure_;
  EXPECT_GE(log.warnings().size(), 10U);
}

TEST_F(LoopbackTest, ARailThatStaysDownIsGivenUp) {
  const base::LogCapture log;
  rails_file.write("1 down\n");
  uint32_t good = 0, bad = 0;
  while (nic_.rails[1]->is_healthy()) std::this_thread::yield();
  copy(0, 0, 0, 100, &good);
  EXPECT_TRUE(wait_for(good));
  flush(1, &bad);
  copy(1, 0, 0, 100, &bad);
  EXPECT_FALSE(wait_for(bad));
  EXPECT_EQ(bad, 2U);
  EXPECT_NE(failure_.find("rail softverbs1:1"), std::string::npos) << failure_;
}

TEST_F(LoopbackTest, OneForAGpuAndANic) {
  const auto first = Loopback::acquire(base::kNoGpu, nic_);
  EXPECT_EQ(Loopback::acquire(base::kNoGpu, nic_), first);
  EXPECT_NE(Loopback::acquire(0, nic_), first);
  EXPECT_NE(Loopback::acquire(base::kNoGpu, host_.nic()), first);
}

// Threads that share one, whose queue pairs fail all the time: each finds its own work done, once it is done.
TEST_F(LoopbackTest, ThreadsShareOne) {
  const base::LogCapture log;
  constexpr uint32_t kThreads = 4, kCopies = 400;
  const size_t share = target_.bytes().size() / kThreads;
  std::atomic<uint32_t> wrong{0}, failed{0};
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      LoopbackUser user(Loopback::acquire(base::kNoGpu, nic_));
      const std::span<std::byte> source = source_.bytes().subspan(t * share, share);
      const std::span<std::byte> target = target_.bytes().subspan(t * share, share);
      std::string failure;
      for (uint32_t i = 0; i < kCopies && failure.empty(); ++i) {
        const uint32_t rail = (i + t) % kRails;
        uint32_t outstanding = 0;
        std::ranges::fill(source, static_cast<std::byte>(i * kThreads + t));
        user.copy(rail, source.data(), source_.registration()->regions[rail].local_key(), target.data(),
                  target_.registration()->regions[rail].remote_key(), static_cast<uint32_t>(share),
                  &outstanding);
        user.flush(rail, target.data(), target_.registration()->regions[rail].remote_key(), &outstanding);
        while (outstanding != 0 && user.poll(&failure)) std::this_thread::yield();
        wrong += !std::ranges::equal(source, target);
      }
      failed += !failure.empty();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0U);
  EXPECT_EQ(failed, 0U);
  EXPECT_GE(log.warnings().size(), 5U) << "or nothing has failed";
}

// A connection that closes in the middle leaves nothing behind, and takes nothing from the others.
TEST_F(LoopbackTest, WhoLeavesTakesItsWorkAlong) {
  const base::LogCapture log;
  uint32_t leaving = 0, staying = 0;
  for (int round = 0; round < 50; ++round) {
    auto other = std::make_unique<LoopbackUser>(Loopback::acquire(base::kNoGpu, nic_));
    for (int i = 0; i < 8; ++i) {
      other->copy(0, source_.bytes().data(), source_.registration()->regions[0].local_key(),
                  target_.bytes().data(), target_.registration()->regions[0].remote_key(), kMaxBytes,
                  &leaving);
      copy(0, kMaxBytes, kMaxBytes, kMaxBytes, &staying);
    }
    other.reset();
    std::ranges::fill(target_.bytes().first(kMaxBytes), std::byte{7});
    ASSERT_TRUE(wait_for(staying)) << failure_;
    ASSERT_TRUE(std::ranges::all_of(target_.bytes().first(kMaxBytes), [](std::byte byte) {
      return byte == std::byte{7};
    })) << "written after it had closed";
  }
}

TEST_F(LoopbackTest, ARequestThatIsWrongFailsNobodyElse) {
  const base::LogCapture log;
  LoopbackUser other(Loopback::acquire(base::kNoGpu, nic_));
  uint32_t bad = 0, good = 0;
  copy(0, 0, 0, 100, &good);
  ASSERT_TRUE(wait_for(good));
  other.copy(0, source_.bytes().data(), source_.registration()->regions[0].local_key(),
             target_.bytes().data(), 1, 100, &bad);
  for (int i = 0; i < 8; ++i) copy(0, 0, 0, 100, &good);
  EXPECT_TRUE(wait_for(good)) << failure_;
  std::string failure;
  const auto deadline = base::Deadline::after_ms(60'000);
  while (other.poll(&failure) && !deadline.has_passed()) std::this_thread::yield();
  EXPECT_NE(failure.find("rail softverbs0:1"), std::string::npos) << failure;
}

TEST_F(LoopbackTest, ARequestThatIsWrongIsNotRepeated) {
  const base::LogCapture log;
  uint32_t outstanding = 0;
  loopback_->copy(0, source_.bytes().data(), source_.registration()->regions[0].local_key(),
                  target_.bytes().data(), 1, 100, &outstanding);
  EXPECT_FALSE(wait_for(outstanding));
  EXPECT_NE(failure_.find("rail softverbs0:1"), std::string::npos) << failure_;
}

}  // namespace
}  // namespace verbena::transport
