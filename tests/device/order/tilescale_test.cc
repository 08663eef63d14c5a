#include "verbena/device/tilescale.cuh"

#include <gtest/gtest.h>

#include "device/emulator/world.h"

namespace {

using verbena::device::WaitLimits;
using verbena::device::WaitResult;
using verbena::emulator::require;
using verbena::emulator::World;

constexpr uint64_t kLongEnough_ns = 3'600'000'000'000;

TEST(Tilescale, LoadsAndStoresByPointerAndByAddress) {
  float memory[2] = {1.5f, 0};
  World world;
  world.add_grid(0, 1, 1, [&] {
    float value = 0;
    tl::ld<Semantic::WEAK, Scope::GPU, false, false>(reinterpret_cast<uint64_t>(memory), value);
    tl::st<Semantic::RELEASE, Scope::SYS, true>(memory + 1, value + 1);
    tl::ld<Semantic::ACQUIRE, Scope::SYS, false, true>(memory + 1, value);
    require(value == 2.5f, "the value");
  });
  EXPECT_EQ(world.run(), "");
  EXPECT_EQ(memory[1], 2.5f);
}

// Every thread of a block works before its block arrives; the arrival must not overtake any of them.
TEST(Tilescale, ABarrierWaitsForTheWholeWorkOfItsBlocks) {
  for (uint64_t seed = 0; seed < 12; ++seed) {
    uint32_t barrier = tl::kBarrierStart<3>;
    std::vector<uint32_t> cells(3 * 64);
    World world(seed);
    world.add_grid(0, 3, 64, [&] {
      const uint32_t rank = verbena::device::block_index() * 64 + verbena::device::thread_index();
      cells[rank] = rank + 1;
      require(tl::sync_barrier_gpu(&barrier, WaitLimits::within(kLongEnough_ns)) == WaitResult::kReached,
              "met");
      require(cells[(rank + 100) % 192] == (rank + 100) % 192 + 1, "another block's cell");
    });
    ASSERT_EQ(world.run(), "");
    EXPECT_EQ(barrier, BARRIER_MAGIC);
  }
}

TEST(Tilescale, NamesPlacesWithinABlock) {
  uint32_t elected = 0, elected_of_64 = 0;
  World world;
  world.add_grid(0, 1, 256, [&] {
    const auto thread = static_cast<int>(verbena::device::thread_index());
    require(tl::get_lane_idx() == thread % 32 && tl::get_warp_idx() == thread / 32, "lane and warp");
    require(tl::get_warp_group_idx() == thread / 128 && tl::get_lane_idx(-1) == thread % 32, "warp group");
    if (tl::tl_shuffle_elect<0>()) tl::atomic_add_release_gpu_u32(&elected, 1);
    if (tl::tl_shuffle_elect<64>()) tl::atomic_add_release_gpu_u32(&elected_of_64, 1);
  });
  EXPECT_EQ(world.run(), "");
  EXPECT_EQ(elected, 1u);
  EXPECT_EQ(elected_of_64, 4u);
}

TEST(Tilescale, WaitsTakeSignedAndUnsignedWords) {
  const int32_t small = -2;
  const uint64_t large = ~uint64_t{0};
  World world;
  world.add_grid(0, 1, 1, [&] {
    const auto limits = WaitLimits::within(1000);
    require(tl::wait_lt(&small, 0, limits) == WaitResult::kReached, "signed");
    require(tl::wait_gt(&large, 1, limits) == WaitResult::kReached, "unsigned");
    require(tl::wait_eq(&small, 5, limits) == WaitResult::kTimedOut, "a deadline");
    require(tl::wait_ne(&small, 5, limits) == WaitResult::kReached, "other");
  });
  EXPECT_EQ(world.run(), "");
}

}  // namespace
