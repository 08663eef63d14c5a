// What a NIC wrote to memory of a GPU is pushed there, on the rails that it came by, whatever the thread's
// CUDA context is: this process has no driver at all. The memory is the host's; what is asked of the NIC
// counts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "base/log_capture.h"
#include "transport/request.h"
#include "transport/support/connection.h"
#include "transport/support/faulty_devices.h"

namespace verbena::transport {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using verbs::faulty::Hooks;

constexpr uint32_t kForeignVendor = 0x15b3;
constexpr size_t kMaxBytes = 4 << 20;

class FlushTest : public testing::Test {
 protected:
  FlushTest() {
    setenv("VERBENA_SELF_TEST", "0", 1);  // it reads, too
    forget_reads();
  }
  ~FlushTest() override {
    hooks_.swallows_reads = hooks_.refuses_reads = hooks_.makes_no_pairs = false;
    hooks_.vendor = 0;
    unsetenv("VERBENA_SELF_TEST");
    apply_settings({{"VERBENA_STALL_WARNING_MS", ""}, {"VERBENA_FAILOVER_TIMEOUT_MS", ""}});
  }

  void connect(int rails) {
    nic_ = &host_.nic(rails);
    connection_ = connect_here(*nic_, *nic_, false);
    source_ = std::make_unique<Memory>(*nic_, kMaxBytes);
    target_ = std::make_unique<Memory>(*nic_, kMaxBytes);
    gpu_target_ =
        take(register_on_rails(*nic_, target_->bytes().data(), kMaxBytes, true, -1, 0), "a registration");
  }
  Receiver& receiver() { return *connection_.receiving.receiver; }

  void receive(size_t bytes, const Registration* memory) {
    Request *sent = nullptr, *received = nullptr;
    ASSERT_TRUE(receiver().post(target_->bytes().data(), bytes, memory, ReceiveClass::kNoSlot, &received));
    ASSERT_TRUE(
        connection_.sender->post(source_->bytes().data(), bytes, source_->registration(), false, &sent));
    ASSERT_TRUE(received != nullptr && sent != nullptr);
    bool is_sent = false, is_received = false;
    uint64_t length = 0;
    EXPECT_TRUE(poll_until([&] {
      base::Outcome outcome;
      if (!is_sent) outcome = connection_.sender->test(*static_cast<SendMessage*>(sent), &is_sent);
      EXPECT_TRUE(outcome);
      if (!is_received)
        outcome = receiver().test(*static_cast<ReceiveMessage*>(received), &is_received, &length);
      EXPECT_TRUE(outcome);
      return is_sent && is_received;
    }));
    EXPECT_EQ(length, bytes);
  }
  // Null: there is nothing to wait for.
  FlushRequest* flush(const Registration* memory) {
    Request* request = nullptr;
    EXPECT_TRUE(receiver().flush(target_->bytes().data(), memory, &request));
    return static_cast<FlushRequest*>(request);
  }
  base::Outcome wait_for(FlushRequest& request) {
    bool is_done = false;
    base::Outcome outcome;
    EXPECT_TRUE(poll_until([&] {
      // Waits look at the clock once in many calls.
      for (int i = 0; i < 1000 && !is_done && outcome; ++i)
        outcome = receiver().test_flush(request, &is_done);
      return is_done || !outcome;
    }));
    return outcome;
  }
  void forget_reads() { std::ranges::fill(hooks_.reads, 0); }
  int count_reads() { return std::accumulate(std::begin(hooks_.reads), std::end(hooks_.reads), 0); }
  void pose_as_nic() {
    hooks_.vendor = kForeignVendor;
    host_ = Host(choose_faulty_devices());
  }

  const base::LogCapture log_;
  Hooks& hooks_ = find_hooks();
  Host host_{choose_faulty_devices()};
  const Nic* nic_ = nullptr;
  std::unique_ptr<Memory> source_, target_;
  std::unique_ptr<Registration> gpu_target_;
  ConnectedPair connection_;  // goes first
};

TEST_F(FlushTest, MemoryOfAGpuIsFlushedWithoutAContext) {
  pose_as_nic();
  connect(1);
  receive(1 << 20, gpu_target_.get());
  FlushRequest* request = flush(gpu_target_.get());
  ASSERT_NE(request, nullptr);
  EXPECT_TRUE(wait_for(*request));
  EXPECT_EQ(count_reads(), 1);
}

TEST_F(FlushTest, OnlyOnTheRailsThatCarriedIt) {
  pose_as_nic();
  connect(2);
  std::array<uint64_t, 2> carried{};  // bytes, by rail
  for (int i = 0; i < 20; ++i) {
    forget_reads();
    receive(i % 2 == 0 ? 4096 : kMaxBytes, gpu_target_.get());
    EXPECT_TRUE(wait_for(*flush(gpu_target_.get())));
    EXPECT_TRUE(wait_for(*flush(gpu_target_.get()))) << "nothing came since";
    for (size_t rail = 0; rail < carried.size(); ++rail) {
      const uint64_t bytes = connection_.sender->statistics().sent_rail_bytes[rail];
      EXPECT_EQ(hooks_.reads[rail], bytes != std::exchange(carried[rail], bytes) ? 1 : 0) << i << ' ' << rail;
    }
  }
  EXPECT_TRUE(std::ranges::all_of(carried, [](uint64_t bytes) { return bytes != 0; }));
}

// What the first does not know to be pushed yet, the second does not take for pushed.
TEST_F(FlushTest, FlushesThatOverlapEachPushTheirs) {
  pose_as_nic();
  connect(1);
  receive(4096, gpu_target_.get());
  FlushRequest *first = flush(gpu_target_.get()), *second = flush(gpu_target_.get());
  ASSERT_TRUE(first != nullptr && second != nullptr);
  EXPECT_TRUE(wait_for(*second));
  EXPECT_TRUE(wait_for(*first));
  EXPECT_EQ(count_reads(), 2);
}

// Queue pairs are a NIC's dearest objects: most connections never flush.
TEST_F(FlushTest, TheQueuePairForItIsMadeOnceWhenItIsNeeded) {
  pose_as_nic();
  const int before = hooks_.live_pairs;
  connect(1);
  ConnectedPair other = connect_here(*nic_, *nic_, false);
  EXPECT_EQ(hooks_.live_pairs - before, 4) << "one an end";
  receive(4096, gpu_target_.get());
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(wait_for(*flush(gpu_target_.get())));
  EXPECT_EQ(hooks_.live_pairs - before, 5);
  std::swap(connection_, other);
  receive(4096, gpu_target_.get());
  forget_reads();
  EXPECT_TRUE(wait_for(*flush(gpu_target_.get())));
  EXPECT_EQ(count_reads(), 1);
  EXPECT_EQ(hooks_.live_pairs - before, 5) << "the same";
}

// The queue pair that both use is replaced, so that the device is done with the memory of the one that has
// closed; what the other had asked for is done again.
TEST_F(FlushTest, AConnectionThatClosesInTheMiddleLeavesNothingUnderWay) {
  pose_as_nic();
  connect(1);
  ConnectedPair other = connect_here(*nic_, *nic_, false);
  receive(4096, gpu_target_.get());
  EXPECT_TRUE(wait_for(*flush(gpu_target_.get()))) << "so that the queue pair is there";
  hooks_.swallows_reads = true;
  receive(4096, gpu_target_.get());
  ASSERT_NE(flush(gpu_target_.get()), nullptr);
  std::swap(connection_, other);
  receive(4096, gpu_target_.get());
  FlushRequest* mine = flush(gpu_target_.get());
  ASSERT_NE(mine, nullptr);
  EXPECT_EQ(count_reads(), 3);
  hooks_.swallows_reads = false;
  other.receiving.receiver.reset();
  EXPECT_TRUE(wait_for(*mine));
  EXPECT_EQ(count_reads(), 4);
}

TEST_F(FlushTest, HostMemoryIsNotFlushed) {
  pose_as_nic();
  connect(1);
  receive(4096, target_->registration());
  EXPECT_EQ(flush(target_->registration()), nullptr);
  EXPECT_EQ(count_reads(), 0);
}

TEST_F(FlushTest, SoftverbsHasNothingToFlush) {
  connect(1);
  receive(4096, gpu_target_.get());
  EXPECT_EQ(flush(gpu_target_.get()), nullptr);
  EXPECT_EQ(count_reads(), 0);
}

TEST_F(FlushTest, AFlushThatNeverEndsFailsItsConnection) {
  pose_as_nic();
  apply_settings({{"VERBENA_STALL_WARNING_MS", "100"}, {"VERBENA_FAILOVER_TIMEOUT_MS", "500"}});
  connect(1);
  receive(4096, gpu_target_.get());
  hooks_.swallows_reads = true;
  FlushRequest* request = flush(gpu_target_.get());
  ASSERT_NE(request, nullptr);
  EXPECT_EQ(wait_for(*request).status(), base::Status::kSystem);
  EXPECT_THAT(log_.warnings(), Contains(HasSubstr("flush 0: waits for 1 reads by the device")));
  EXPECT_THAT(log_.warnings(),
              Contains(HasSubstr("flush 0: the device reports no completions of its local reads")));
}

// --- A flush that cannot be made is an error, of itself and of every later one, and never "done": NCCL would
// let a kernel read what is not there yet.

class ImpossibleFlushTest : public FlushTest {
 protected:
  ImpossibleFlushTest() {
    pose_as_nic();
    apply_settings({{"VERBENA_FAILOVER_TIMEOUT_MS", "300"}});
  }
  void expect_failure_of_flush() {
    bool is_done = false;
    base::Outcome outcome;
    FlushRequest* const request = start_flush(&outcome);
    EXPECT_TRUE(!outcome || request != nullptr) << "there is something to push";
    if (request != nullptr) {
      outcome = wait_for(*request);
      EXPECT_TRUE(request->outstanding != 0) << "and it was not pushed";
      EXPECT_EQ(receiver().test_flush(*request, &is_done).status(), outcome.status());
    }
    EXPECT_FALSE(outcome);
    EXPECT_FALSE(is_done);
    static_cast<void>(start_flush(&outcome));
    EXPECT_FALSE(outcome) << "nor can another be";
  }

 private:
  FlushRequest* start_flush(base::Outcome* outcome) {
    Request* request = nullptr;
    *outcome = receiver().flush(target_->bytes().data(), gpu_target_.get(), &request);
    return static_cast<FlushRequest*>(request);
  }
};

TEST_F(ImpossibleFlushTest, TheDeviceDoesNotReachMemoryOfGpus) {
  connect(1);
  Nic unable = *nic_;
  unable.supports_gpu_pointers = unable.supports_dmabuf = false;
  connection_ = connect_here(unable, unable, false);
  receive(4096, gpu_target_.get());
  expect_failure_of_flush();
  EXPECT_EQ(count_reads(), 0);
  connection_ = {};  // before its device
}

TEST_F(ImpossibleFlushTest, NoQueuePairCanBeMade) {
  connect(1);
  receive(4096, gpu_target_.get());
  hooks_.makes_no_pairs = true;
  expect_failure_of_flush();
  EXPECT_EQ(count_reads(), 0);
}

TEST_F(ImpossibleFlushTest, TheReadCannotBePosted) {
  connect(1);
  receive(4096, gpu_target_.get());
  hooks_.refuses_reads = true;
  expect_failure_of_flush();
}

TEST_F(ImpossibleFlushTest, TheDeviceRefusesTheAddress) {
  connect(1);
  receive(4096, gpu_target_.get());
  gpu_target_->regions[0] = {};
  expect_failure_of_flush();
  EXPECT_EQ(count_reads(), 1);
}

}  // namespace
}  // namespace verbena::transport
