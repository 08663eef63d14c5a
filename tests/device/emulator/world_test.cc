// The emulator itself: what runs, in which order, and what it reports.
#include "device/emulator/world.h"
#include "device/emulator/sanitizer.h"

#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <vector>

#include "device/support/run_kernel.h"
#include "verbena/device/emulation.h"

namespace verbena::emulator {
namespace {

using namespace device;             // NOLINT
using namespace device::emulation;  // NOLINT

class EverySchedule : public testing::TestWithParam<uint64_t> {};
INSTANTIATE_TEST_SUITE_P(Seeds, EverySchedule, testing::Values(0, 1, 2, 3, 4, 5, 6));

uint32_t global_thread() {
  return index().block * index().threads_per_block + index().thread;
}

TEST_P(EverySchedule, RunsEveryThreadOfEveryGpuOnce) {
  std::vector<int> counts(2 * 3 * 70);
  World world(GetParam());
  for (uint32_t gpu = 0; gpu < 2; ++gpu) {
    world.add_grid(gpu, 3, 70, [&] {
      require(index().blocks_per_grid == 3 && index().threads_per_block == 70, "place");
      ++counts[current_gpu() * 210 + global_thread()];
    });
  }
  EXPECT_EQ(world.run(), "");
  EXPECT_EQ(counts, std::vector<int>(counts.size(), 1));
}

TEST_P(EverySchedule, BlockBarrierOrdersWritesOverManyRounds) {
  constexpr uint32_t kThreads = 96;
  uint32_t cells[kThreads] = {};
  emulator::run_kernel(GetParam(), 1, kThreads, [&] {
    const uint32_t own = index().thread;
    for (uint32_t round = 1; round < 20; ++round) {
      cells[own] = round;
      sync_block();
      require(cells[(own + 1) % kThreads] == round, "the neighbour's value of this round");
      sync_block();
    }
  });
}

TEST_P(EverySchedule, NamedBarriersHoldOnlyTheirThreads) {
  uint32_t cells[2] = {};
  emulator::run_kernel(GetParam(), 1, 128, [&] {
    const uint32_t half = index().thread / 64;
    for (uint32_t round = 1; round < 10 * (half + 1);
         ++round) {  // the halves meet a different number of times
      if (index().thread % 64 == 0) cells[half] = round;
      sync_named(static_cast<int>(1 + half), 64);
      require(cells[half] == round, "the half's round");
      sync_named(static_cast<int>(1 + half), 64);
    }
  });
}

TEST_P(EverySchedule, WarpOperationsGiveEachLaneItsResult) {
  emulator::run_kernel(GetParam(), 2, 64, [&] {
    const uint32_t lane = index().thread % 32;
    for (uint32_t round = 0; round < 5; ++round) {
      require(shuffle(kFullWarp, lane + round, static_cast<int>((lane + 1) % 32)) == (lane + 1) % 32 + round,
              "shuffle");
      require(ballot(kFullWarp, lane % 3 == 0) == 0x49249249, "ballot");
    }
    const uint32_t half = lane < 16 ? 0x0000ffff : 0xffff0000;
    require(shuffle(half, lane, lane < 16 ? 3 : 30) == (lane < 16 ? 3u : 30u), "two halves at the same time");
    sync_warp(half);
    require(ballot(half, true) == half, "ballot of a half");
  });
}

TEST_P(EverySchedule, SharedMemoryIsOfTheBlockAndPoisoned) {
  static const char key = 0;
  emulator::run_kernel(GetParam(), 3, 32, [&] {
    auto* words = static_cast<uint32_t*>(shared_memory(&key, 128, 16));
    require(words[index().thread] == 0xa5a5a5a5, "poison");
    words[index().thread] = index().block;
    sync_block();
    require(words[31 - index().thread] == index().block, "the block's own");
  });
}

TEST_P(EverySchedule, UpdatesOfManyBlocksAddUp) {
  uint64_t sum = 0;
  uint32_t largest = 7;
  emulator::run_kernel(GetParam(), 4, 32, [&] {
    update(&sum, Operation::kAdd, 3, 0, 8, Order::kRelaxed, Scope::kGpu);
    update(&largest, Operation::kMax, global_thread(), 0, 4, Order::kRelaxed, Scope::kGpu);
  });
  EXPECT_EQ(sum, 4 * 32 * 3u);
  EXPECT_EQ(largest, 127u);
}

TEST_P(EverySchedule, HostCodeAndKernelTalkThroughAtomics) {
  uint32_t question = 0;
  uint32_t answer = 0;
  World world(GetParam());
  world.add_host([&] {
    for (uint32_t round = 1; round < 20; ++round) {
      std::atomic_ref<uint32_t>(question).store(round, std::memory_order_release);
      while (std::atomic_ref<uint32_t>(answer).load(std::memory_order_acquire) != round) yield();
    }
  });
  world.add_grid(0, 1, 1, [&] {
    for (uint32_t round = 1; round < 20; ++round) {
      uint32_t seen = 0;
      do load(&seen, &question, 4, Order::kAcquire, Scope::kSystem);
      while (seen != round);
      store(&answer, &round, 4, Order::kRelease, Scope::kSystem);
    }
  });
  EXPECT_EQ(world.run(), "");
}

// A thread that only pauses costs no steps, and time goes on when all of them do.
TEST_P(EverySchedule, PausesLastTheirTime) {
  World world(GetParam());
  world.add_grid(0, 1, 2, [&] {
    const uint64_t start_ns = clock_ns();
    pause(500'000'000);
    require(clock_ns() - start_ns >= 500'000'000, "half a second");
  });
  EXPECT_EQ(world.run(), "");
  EXPECT_LT(world.steps(), 100u);
}

TEST_P(EverySchedule, DeadlinePassesWhileAThreadSpins) {
  uint32_t flag = 0;
  emulator::run_kernel(GetParam(), 1, 4, [&] {
    const uint64_t start_ns = clock_ns();
    uint32_t seen = 0;
    do load(&seen, &flag, 4, Order::kAcquire, Scope::kSystem);
    while (seen == 0 && clock_ns() - start_ns < 2'000'000'000);
  });
}

// The order in which threads finish tells schedules apart.
std::string finishing_order(uint64_t seed) {
  std::string order;
  emulator::run_kernel(seed, 1, 26, [&] {
    for (int i = 0; i < 30; ++i) yield();
    order += static_cast<char>('a' + index().thread);
  });
  return order;
}

// Programmatic dependent launch: the second grid begins when the first one lets it, and waits for its end.
TEST_P(EverySchedule, ADependentGridBeginsEarlyAndWaitsForTheOneBefore) {
  uint64_t has_begun = 0;
  uint32_t data[2] = {};
  World world(GetParam());
  Grid* const first = world.add_grid(0, 2, 32, [&] {
    if (index().thread == 0) {
      pause(10'000);
      require(__atomic_load_n(&has_begun, __ATOMIC_RELAXED) == 0,
              "the second grid has begun before it was let");
      let_next_grid_start();
    }
    uint64_t begun = 0;
    while (begun == 0) emulation::load(&begun, &has_begun, 8, Order::kRelaxed, Scope::kGpu);
    if (index().thread == 0) data[index().block] = index().block + 1;
  });
  world.add_grid(
      0, 1, 32,
      [&] {
        const uint64_t begun = 1;
        if (index().thread == 0) emulation::store(&has_begun, &begun, 8, Order::kRelaxed, Scope::kGpu);
        wait_for_earlier_grids();
        require(data[0] == 1 && data[1] == 2, "what the first grid wrote");
      },
      1, first);
  EXPECT_EQ(world.run(), "");
}

// A grid that does not wait ends before the one in front of it, and so does the wait of the one behind.
TEST_P(EverySchedule, AWaitIsForTheGridBeforeAlone) {
  uint64_t has_ended = 0;
  World world(GetParam());
  Grid* const first = world.add_grid(0, 1, 32, [&] {
    let_next_grid_start();
    uint64_t ended = 0;
    while (ended == 0) emulation::load(&ended, &has_ended, 8, Order::kRelaxed, Scope::kGpu);
  });
  Grid* const second = world.add_grid(
      0, 1, 32, [] {}, 1, first);
  world.add_grid(
      0, 1, 32,
      [&] {
        wait_for_earlier_grids();
        const uint64_t ended = 1;
        if (index().thread == 0) emulation::store(&has_ended, &ended, 8, Order::kRelaxed, Scope::kGpu);
      },
      1, second);
  EXPECT_EQ(world.run(), "");
}

TEST(Schedule, IsTheSameForTheSameSeedOnly) {
  if (kThreadSanitizer) GTEST_SKIP() << "its threads append to one string without any order";
  EXPECT_EQ(finishing_order(0), "abcdefghijklmnopqrstuvwxyz");
  for (uint64_t seed = 1; seed < 7; ++seed) {
    EXPECT_EQ(finishing_order(seed), finishing_order(seed));
    EXPECT_NE(finishing_order(seed), finishing_order(seed + 7));
  }
}

TEST(Schedule, WaitsForAStep) {
  uint64_t reached = 0;
  World world;
  world.add_host([&] {
    wait_until_step(1000);
    reached = 1;
  });
  world.add_grid(0, 1, 1, [&] {
    for (int i = 0; i < 5000; ++i) yield();
  });
  EXPECT_EQ(world.run(), "");
  EXPECT_EQ(reached, 1u);
}

}  // namespace
}  // namespace verbena::emulator
