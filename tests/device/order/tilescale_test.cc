#include "verbena/device/tilescale.cuh"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "device/emulator/world.h"
#include "device/support/run_kernel.h"

namespace {

using verbena::device::WaitLimits;
using verbena::device::WaitResult;
using verbena::emulator::require;
using verbena::emulator::run_kernel;
using verbena::emulator::World;

constexpr uint64_t kLongEnough_ns = 3'600'000'000'000;

TEST(Tilescale, LoadsAndStoresByPointerAndByAddress) {
  float memory[2] = {1.5f, 0};
  run_kernel(0, 1, 1, [&] {
    float value = 0;
    tl::ld<Semantic::WEAK, Scope::GPU, false, false>(reinterpret_cast<uint64_t>(memory), value);
    tl::st<Semantic::RELEASE, Scope::SYS, true>(memory + 1, value + 1);
    tl::ld<Semantic::ACQUIRE, Scope::SYS, false, true>(memory + 1, value);
    require(value == 2.5f, "the value");
  });
  EXPECT_EQ(memory[1], 2.5f);
}

// Every thread of a block works before its block arrives; the arrival must not overtake any of them.
TEST(Tilescale, ABarrierWaitsForTheWholeWorkOfItsBlocks) {
  for (uint64_t seed = 0; seed < 12; ++seed) {
    uint32_t barrier = tl::kBarrierStart<3>;
    std::vector<uint32_t> cells(3 * 64);
    run_kernel(seed, 3, 64, [&] {
      const uint32_t rank = verbena::device::block_index() * 64 + verbena::device::thread_index();
      cells[rank] = rank + 1;
      require(tl::sync_barrier_gpu(&barrier, WaitLimits::within(kLongEnough_ns)) == WaitResult::kReached,
              "met");
      require(cells[(rank + 100) % 192] == (rank + 100) % 192 + 1, "another block's cell");
    });
    EXPECT_EQ(barrier, BARRIER_MAGIC);
  }
}

TEST(Tilescale, NamesPlacesWithinABlock) {
  uint32_t elected = 0, elected_of_64 = 0;
  run_kernel(0, 1, 256, [&] {
    const auto thread = static_cast<int>(verbena::device::thread_index());
    require(tl::get_lane_idx() == thread % 32 && tl::get_warp_idx() == thread / 32, "lane and warp");
    require(tl::get_warp_group_idx() == thread / 128 && tl::get_lane_idx(-1) == thread % 32, "warp group");
    if (tl::tl_shuffle_elect<0>()) tl::atomic_add_release_gpu_u32(&elected, 1);
    if (tl::tl_shuffle_elect<64>()) tl::atomic_add_release_gpu_u32(&elected_of_64, 1);
  });
  EXPECT_EQ(elected, 1u);
  EXPECT_EQ(elected_of_64, 4u);
}

// Rounds of a grid's barrier; the word is zero at first and never set back.
TEST(Tilescale, AGridMeetsAgainAndAgain) {
  constexpr uint32_t kBlocks = 3, kRounds = 5;
  for (uint64_t seed = 0; seed < 8; ++seed) {
    uint32_t barrier = 0;
    std::vector<uint32_t> cells(kBlocks * 32);
    run_kernel(seed, kBlocks, 32, [&] {
      const uint32_t rank = verbena::device::block_index() * 32 + verbena::device::thread_index();
      for (uint32_t round = 1; round <= kRounds; ++round) {
        cells[rank] = round * 1000 + rank;
        require(tl::sync_grid(&barrier) == WaitResult::kReached, "met");
        const uint32_t other = (rank + 37) % (kBlocks * 32);
        require(cells[other] == round * 1000 + other, "another block's cell");
        const uint32_t before = tl::sync_grids_arrive(&barrier);
        require(tl::sync_grids_wait(before, &barrier) == WaitResult::kReached, "all have looked");
      }
    });
  }
}

// As generated code has them: statements without limits, addresses as numbers.
TEST(Tilescale, WithoutLimits) {
  uint32_t barrier = tl::kBarrierStart<2>;
  int32_t flag = 0;
  uint64_t wide = 0;
  run_kernel(0, 2, 32, [&] {
    if (verbena::device::block_index() == 0) {
      tl::arrive_barrier_gpu(&barrier);
      tl::wait_barrier_gpu(&barrier);
    } else {
      tl::sync_barrier_gpu(&barrier);
    }
    if (verbena::device::thread_index() != 0) return;
    if (verbena::device::block_index() == 0) {
      tl::st<Semantic::RELEASE, Scope::SYS, false>(&flag, 3);
      tl::wait_eq(&wide, 7);
      require(tl::wait_gt(&wide, 6) == WaitResult::kReached, "greater");
    } else {
      tl::wait_ge(reinterpret_cast<uint64_t>(&flag), 2);
      require(tl::ld_acquire(&flag) == 3 && tl::ld_volatile_global(&flag) == 3, "the flag");
      tl::st<Semantic::RELEASE, Scope::SYS, false>(&wide, uint64_t{7});
    }
  });
}

// A thread's data is there for another one that has seen its flag: `send(flag)` and `has_come(flag)`.
enum class Distance { kBlock, kGpu, kSystem };
template <typename Send, typename HasCome>
void pass_data(Distance distance, const Send& send, const HasCome& has_come) {
  const bool is_block = distance == Distance::kBlock;
  for (uint64_t seed = 0; seed < 4; ++seed) {
    uint32_t flag = 0, data = 0;
    const auto write = [&] {
      data = 7;
      send(&flag);
    };
    const auto read = [&] {
      while (!has_come(&flag)) verbena::device::pause(20);
      require(data == 7, "what is behind the flag");
    };
    World world(seed);
    if (distance == Distance::kSystem) {
      world.add_grid(0, 1, 1, write);
      world.add_grid(1, 1, 1, read);
    } else {
      world.add_grid(0, is_block ? 1 : 2, is_block ? 64 : 1, [&] {
        const uint32_t which =
            is_block ? verbena::device::thread_index() : 32 * verbena::device::block_index();
        if (which == 0) write();
        if (which == 32) read();
      });
    }
    EXPECT_EQ(world.run(), "");
  }
}
template <Semantic semantic, Scope scope>
void store_one(uint32_t* flag) {
  tl::st<semantic, scope, false>(flag, 1u);
}
template <Semantic semantic, Scope scope>
bool load_one(const uint32_t* flag) {
  uint32_t value = 0;
  tl::ld<semantic, scope, false, false>(flag, value);
  return value == 1;
}
template <Scope scope, typename Fence>
void pass_by_fences(Distance distance, const Fence& fence) {
  pass_data(
      distance,
      [&](uint32_t* flag) {
        fence();
        store_one<Semantic::RELAXED, scope>(flag);
      },
      [&](const uint32_t* flag) {
        const bool has_come = load_one<Semantic::RELAXED, scope>(flag);
        fence();
        return has_come;
      });
}

TEST(Tilescale, AFlagBringsData) {
  const auto send_to_gpu = &store_one<Semantic::RELEASE, Scope::GPU>;
  const auto send_to_all = &store_one<Semantic::RELEASE, Scope::SYS>;
  pass_data(Distance::kGpu, send_to_gpu, &load_one<Semantic::ACQUIRE, Scope::GPU>);
  pass_data(Distance::kGpu, send_to_gpu,
            [](const uint32_t* flag) { return tl::ld_acquire_gpu_u32(flag) == 1; });
  pass_data(Distance::kGpu, send_to_gpu,
            [](const uint32_t* flag) { return tl::ld_acquire(reinterpret_cast<const int*>(flag)) == 1; });
  pass_data(Distance::kSystem, send_to_all, &load_one<Semantic::ACQUIRE, Scope::SYS>);
  pass_data(Distance::kSystem, send_to_all, [](const uint32_t* flag) {
    return tl::atomic_load_acquire_sys_s32(reinterpret_cast<const int*>(flag)) == 1;
  });
  pass_data(Distance::kSystem, send_to_all,
            [](const uint32_t* flag) { return tl::wait_eq(flag, 1u) == WaitResult::kReached; });
  pass_by_fences<Scope::CTA>(Distance::kBlock, [] { tl::memory_fence_cta(); });
  pass_by_fences<Scope::GPU>(Distance::kGpu, [] { tl::memory_fence_gpu(); });
  pass_by_fences<Scope::SYS>(Distance::kSystem, [] { tl::memory_fence_sys(); });
}

TEST(Tilescale, CopiesElements) {
  // Copies read whole vectors of 16 bytes.
  std::vector<uint16_t> from(104), by_warp(100), by_block(100);
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<uint16_t>(i * 7 + 1);
  run_kernel(0, 1, 64, [&] {
    if (verbena::device::thread_index() < 32) {
      tl::cp_warp<97, 4>(by_warp.data() + 1, from.data());
      tl::cp_warp<1, 4, true>(reinterpret_cast<uint64_t>(by_warp.data()), from.data());
    }
    tl::cp_block<99>(by_block.data(), reinterpret_cast<uint64_t>(from.data() + 1));
    tl::warpgroup_arrive();
    tl::warpgroup_commit_batch();
    tl::warpgroup_wait<0>();
    tl::warpgroup_reg_dealloc<24>();
    tl::warpgroup_reg_alloc<240>();
  });
  EXPECT_TRUE(std::equal(from.begin(), from.begin() + 97, by_warp.begin() + 1));
  EXPECT_EQ(by_warp[0], from[0]);
  EXPECT_EQ(by_warp[98], 0) << "not an element more";
  EXPECT_TRUE(std::equal(from.begin() + 1, from.begin() + 100, by_block.begin()));
  EXPECT_EQ(by_block[99], 0);
}

TEST(Tilescale, AddsReturnTheValueBefore) {
  uint32_t word = 5;
  run_kernel(0, 1, 1, [&] {
    const uint32_t* const place = &word;
    uint32_t expected = 5;
    for (const auto add :
         {&tl::ptx_atom_add_relaxed_gpu, &tl::ptx_atom_add_acquire_gpu, &tl::ptx_atom_add_release_gpu,
          &tl::ptx_atom_add_acq_rel_gpu, &tl::ptx_atom_add_relaxed_sys, &tl::ptx_atom_add_acquire_sys,
          &tl::ptx_atom_add_release_sys, &tl::ptx_atom_add_acq_rel_sys, &tl::atomic_add_release_gpu_u32})
      require(add(place, 3) == std::exchange(expected, expected + 3), "before");
  });
  EXPECT_EQ(word, 5u + 27);
}

TEST(Tilescale, WaitsTakeSignedAndUnsignedWords) {
  const int32_t small = -2;
  const uint64_t large = ~uint64_t{0};
  run_kernel(0, 1, 1, [&] {
    const auto limits = WaitLimits::within(1000);
    require(tl::wait_lt(&small, 0, limits) == WaitResult::kReached, "signed");
    require(tl::wait_gt(&large, 1, limits) == WaitResult::kReached, "unsigned");
    require(tl::wait_eq(&small, 5, limits) == WaitResult::kTimedOut, "a deadline");
    require(tl::wait_ne(&small, 5, limits) == WaitResult::kReached, "other");
  });
}

}  // namespace
