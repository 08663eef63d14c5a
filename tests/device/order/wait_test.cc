#include "verbena/device/wait.cuh"

#include "device/support/run_kernel.h"
#include "schedules.h"
#include "verbena/device/group.cuh"

namespace verbena::device {
namespace {

constexpr uint64_t kLongEnough_ns = 3'600'000'000'000;

template <Relation relation>
void expect_holds(bool less, bool equal, bool greater) {
  EXPECT_EQ(holds<relation>(-1, 1), less);
  EXPECT_EQ(holds<relation>(1, 1), equal);
  EXPECT_EQ(holds<relation>(1, -1), greater);
  EXPECT_EQ(holds<relation>(1u, ~0u), less);
  EXPECT_EQ(holds<relation>(~uint64_t{0}, uint64_t{1}), greater);
}

TEST(Wait, ComparesByTheWordsSign) {
  expect_holds<Relation::kEqual>(false, true, false);
  expect_holds<Relation::kNotEqual>(true, false, true);
  expect_holds<Relation::kGreaterEqual>(false, true, true);
  expect_holds<Relation::kLessEqual>(true, true, false);
  expect_holds<Relation::kGreater>(false, false, true);
  expect_holds<Relation::kLess>(true, false, false);
}

TEST(Wait, PausesLongerAndLonger) {
  PauseLongerAndLonger<32, 200> back_off;
  std::vector<uint32_t> pauses;
  emulator::run_kernel(0, 1, 1, [&] {
    for (int i = 0; i < 6; ++i) {
      pauses.push_back(back_off.next_ns);
      back_off.pause();
    }
  });
  EXPECT_EQ(pauses, (std::vector<uint32_t>{32, 64, 128, 200, 200, 200}));
}

class Waiting : public EverySchedule {};
INSTANTIATE_TEST_SUITE_P(Seeds, Waiting, kSchedules);

// The flag counts 1, 2, 3 and goes back to -1; each waiter is served by the values that it asks for.
TEST_P(Waiting, EveryRelationIsReached) {
  int64_t flag = 0;
  std::vector<WaitResult> results(6, WaitResult::kTimedOut);
  const auto host = [&] {
    for (const int64_t value : {1, 3, -1, 7}) {
      emulation::store(&flag, &value, sizeof value, Order::kRelease, Scope::kSystem);
      for (int i = 0; i < 300; ++i) emulator::yield();
    }
  };
  emulator::run_beside(host, GetParam(), 1, 1, [&] {
    const auto limits = WaitLimits::within(kLongEnough_ns);
    results[0] = wait_until<Relation::kEqual, Scope::kSystem>(&flag, 3, limits);
    results[1] = wait_until<Relation::kNotEqual, Scope::kSystem>(&flag, 3, limits);
    results[2] = wait_until<Relation::kLess, Scope::kSystem>(&flag, 0, limits);
    results[3] = wait_until<Relation::kGreater, Scope::kSystem>(&flag, 6, limits);
    results[4] = wait_until<Relation::kGreaterEqual, Scope::kSystem>(&flag, 7, limits);
    results[5] = wait_until<Relation::kLessEqual, Scope::kSystem>(&flag, 7, limits);
  });
  EXPECT_EQ(results, std::vector<WaitResult>(6, WaitResult::kReached));
}

// ThreadSanitizer sees the weak accesses: the wait must be an acquire.
TEST_P(Waiting, WhatTheWriterDidIsThereForTheWholeBlock) {
  std::vector<uint32_t> data(64);
  uint32_t flag = 0;
  emulator::run_kernel(GetParam(), 2, 64, [&] {
    const uint32_t rank = thread_index();
    if (block_index() == 0) {
      store<Order::kWeak, Scope::kThreads>(&data[rank], rank + 1);
      sync_block();
      if (rank == 0) store_release<Scope::kGpu>(&flag, 1);
      return;
    }
    const WaitResult result = wait_together<Relation::kEqual, Scope::kGpu, PauseLongerAndLonger<>>(
        BlockGroup{}, &flag, 1, WaitLimits::within(kLongEnough_ns));
    require(result == WaitResult::kReached, "reached");
    require(load<Order::kWeak, Scope::kThreads>(&data[63 - rank]) == 64 - rank, "the data");
  });
}

TEST_P(Waiting, ADeadlineEndsItForAll) {
  uint32_t flag = 0;
  std::vector<WaitResult> results(64, WaitResult::kReached);
  emulator::run_kernel(GetParam(), 1, 64, [&] {
    results[thread_index()] = wait_together<Relation::kEqual, Scope::kGpu, PauseLongerAndLonger<>, 4>(
        BlockGroup{}, &flag, 1, WaitLimits::within(5000));
  });
  EXPECT_EQ(results, std::vector<WaitResult>(64, WaitResult::kTimedOut));
}

TEST_P(Waiting, AnAbortEndsItForAll) {
  uint32_t flag = 0, abort_word = 0;
  std::vector<WaitResult> results(64, WaitResult::kReached);
  const auto host = [&] {
    emulator::wait_until_step(200);
    const uint32_t yes = 1;
    emulation::store(&abort_word, &yes, sizeof yes, Order::kRelaxed, Scope::kSystem);
  };
  emulator::run_beside(host, GetParam(), 1, 64, [&] {
    results[thread_index()] = wait_together<Relation::kEqual, Scope::kGpu, SpinWithoutPause, 4>(
        WarpGroup{}, &flag, 1, WaitLimits::within(kLongEnough_ns, &abort_word));
  });
  EXPECT_EQ(results, std::vector<WaitResult>(64, WaitResult::kAborted));
}

TEST(Wait, AReachedValueComesBeforeAbortAndDeadline) {
  const uint32_t flag = 1, abort_word = 1;
  WaitResult result{};
  emulator::run_kernel(0, 1, 1, [&] {
    result = wait_until<Relation::kEqual, Scope::kGpu, SpinWithoutPause, 1>(&flag, 1, {0, &abort_word});
  });
  EXPECT_EQ(result, WaitResult::kReached);
}

TEST(Wait, ATimeoutPastTheEndOfTimeIsNone) {
  WaitLimits limits{};
  emulator::run_kernel(0, 1, 1, [&] { limits = WaitLimits::within(~uint64_t{0}); });
  EXPECT_EQ(limits.deadline_ns, ~uint64_t{0});
}

TEST_P(Waiting, AGroupAgreesOnTheWorstResult) {
  const WaitResult cases[3][2] = {{WaitResult::kReached, WaitResult::kReached},
                                  {WaitResult::kTimedOut, WaitResult::kTimedOut},
                                  {WaitResult::kAborted, WaitResult::kAborted}};
  emulator::run_kernel(GetParam(), 1, 64, [&] {
    for (const auto& one : cases) {
      require(agree(BlockGroup{}, thread_index() == 40 ? one[0] : WaitResult::kReached) == one[1],
              "one thread");
    }
    const auto mine = thread_index() == 3 ? WaitResult::kTimedOut : WaitResult::kAborted;
    require(agree(BlockGroup{}, mine) == WaitResult::kAborted, "an abort is said first");
  });
}

}  // namespace
}  // namespace verbena::device
