// Barriers of a team: no rank passes before all have arrived, and writes before the barrier are visible after
// it.
#include <gtest/gtest.h>

#include "device/emulator/world.h"
#include "device/support/run_kernel.h"
#include "device/symm/fleet.h"
#include "verbena/device/barrier.cuh"
#include "verbena/device/symm.cuh"

namespace verbena::device_test {
namespace {

using emulator::World;

// Each rank tells all others its round, in plain memory; behind a barrier all of it is there, behind a second
// one it may be overwritten.
template <typename Group>
void meet(Fleet& fleet, int32_t rank, uint32_t barrier, const Group& group, uint64_t rounds) {
  const SymmContext& context = fleet.context(rank);
  uint64_t* const told = fleet.data<uint64_t>(rank) + barrier * 64;
  for (uint64_t round = 1; round <= rounds; ++round) {
    for (int32_t peer = static_cast<int32_t>(group.rank()); peer < fleet.size();
         peer += static_cast<int32_t>(group.size()))
      device::store<device::Order::kWeak, device::Scope::kThreads>(
          device::symm_lsa_ptr(context, told, peer) + rank, round);
    emulator::require_done(device::symm_barrier(context, barrier, group), "first");
    for (int32_t peer = 0; peer < fleet.size(); ++peer)
      emulator::require(device::load<device::Order::kWeak, device::Scope::kThreads>(told + peer) == round,
                        "all have told their round");
    emulator::require_done(device::symm_barrier(context, barrier, group), "second");
  }
}

struct Case {
  int32_t ranks;
  uint32_t threads;
};
class SymmBarrierTest : public testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Teams, SymmBarrierTest,
                         testing::Values(Case{1, 32}, Case{2, 64}, Case{3, 32}, Case{5, 64}, Case{6, 32},
                                         Case{7, 32}, Case{8, 32}, Case{16, 32}, Case{40, 32}),
                         [](const auto& one) {
                           return std::to_string(one.param.ranks) + "x" + std::to_string(one.param.threads);
                         });

TEST_P(SymmBarrierTest, BlocksMeet) {
  for (uint64_t seed = 0; seed < 6; ++seed) {
    Fleet fleet(GetParam().ranks);
    emulator::run_on_ranks(seed, fleet.size(), 1, GetParam().threads, [&](int32_t rank) {
      if ((seed + static_cast<uint64_t>(rank)) % 3 == 0) device::pause(500'000);
      meet(fleet, rank, 3, device::BlockGroup{}, 3);
    });
  }
}

TEST(SymmBarrier, BlocksOfAGridMeetTheirOwnNumber) {
  for (uint64_t seed = 1; seed < 5; ++seed) {
    Fleet fleet(2);
    emulator::run_on_ranks(seed, 2, 3, 32, [&](int32_t rank) {
      meet(fleet, rank, device::block_index(), device::BlockGroup{}, 4);
    });
  }
}

// Two streams of each rank, with equal numbers of blocks, the second one's ranks in another order of
// launches: each workspace has its own barriers, so that no kernel passes on the other one's arrivals.
TEST(SymmBarrier, KernelsWithAWorkspaceEachDoNotMeet) {
  constexpr uint32_t kBlocks = 2;
  for (uint64_t seed = 0; seed < 6; ++seed) {
    Fleet fleet(2, INT32_MAX, 2 * Fleet::measure_workspace(2, kBlocks, 128));
    uint64_t arrived[2] = {};
    World world(seed);
    for (int32_t rank = 0; rank < 2; ++rank) {
      for (uint64_t stream = 0; stream < 2; ++stream) {
        world.add_grid(static_cast<uint32_t>(rank), kBlocks, 32, [&, rank, stream] {
          const SymmWorkspace<> mine = fleet.workspace(rank, stream, kBlocks, 128);
          // Rank 1's second kernel comes when both ranks' first ones are done.
          while (stream == 1 && rank == 1 &&
                 device::load_relaxed<device::Scope::kSystem>(&arrived[0]) +
                         device::load_relaxed<device::Scope::kSystem>(&arrived[1]) <
                     2 * kBlocks) {
          }
          uint64_t* const told = fleet.data<uint64_t>(rank) + (2 * stream + device::block_index()) * 64;
          for (uint64_t round = 1; round < 4; ++round) {
            const uint32_t number = device::block_index();
            if (device::thread_index() == 0)
              device::store<device::Order::kWeak, device::Scope::kThreads>(
                  device::symm_lsa_ptr(mine.context, told, 1 - rank), round);
            emulator::require_done(device::symm_barrier(mine.context, number), "first");
            emulator::require(device::load<device::Order::kWeak, device::Scope::kThreads>(told) == round,
                              "told");
            emulator::require_done(device::symm_barrier(mine.context, number), "second");
          }
          if (stream == 0 && device::thread_index() == 0)
            device::reduce_add<device::Order::kRelaxed, device::Scope::kSystem>(&arrived[rank], 1);
        });
      }
    }
    EXPECT_EQ(world.run(), "");
  }
}

TEST(SymmBarrier, WarpsAndThreadsMeet) {
  Fleet fleet(3);
  emulator::run_on_ranks(7, 3, 1, 64, [&](int32_t rank) {
    if (device::thread_index() < 32) {
      meet(fleet, rank, 0, device::WarpGroup{}, 3);
    } else if (device::thread_index() == 40) {
      meet(fleet, rank, 1, device::ThreadGroup{}, 3);
    }
  });
}

// All blocks of all ranks at one barrier.
TEST(SymmBarrier, GridsMeet) {
  for (uint64_t seed = 0; seed < 4; ++seed) {
    Fleet fleet(2);
    uint64_t arrived[2] = {}, words[2][device::GridGroup::kWords] = {};
    emulator::run_on_ranks(seed, 2, 2, 32, [&](int32_t rank) {
      const auto limits = device::WaitLimits::within(fleet.context(rank).timeout_ns);
      meet(fleet, rank, 3, device::GridGroup{{&arrived[rank], 2}, words[rank], limits}, 3);
    });
  }
}

TEST(SymmBarrier, HalvesLeaveRoomForWork) {
  Fleet fleet(2);
  emulator::run_on_ranks(11, 2, 1, 32, [&](int32_t rank) {
    const SymmContext& context = fleet.context(rank);
    const device::WarpGroup group;
    uint64_t* const told = fleet.data<uint64_t>(rank);
    if (group.elect())
      device::store_relaxed<device::Scope::kSystem>(device::symm_lsa_ptr(context, told, 1 - rank), 77);
    emulator::require_done(device::symm_lsa_barrier_arrive(context, 5, group), "arrive");
    emulator::require_done(device::symm_lsa_barrier_wait(context, 5, group), "wait");
    emulator::require(device::load_relaxed<device::Scope::kSystem>(told) == 77, "told");
  });
}

TEST(SymmBarrier, EndsWithoutTheOthers) {
  Fleet fleet(2);
  fleet.context(0).timeout_ns = 20'000;
  const uint32_t abort_word = 1;
  fleet.context(1).abort_word = &abort_word;
  World world;
  world.add_grid(0, 1, 32, [&] {
    emulator::require(device::symm_barrier(fleet.context(0), 0) == SymmStatus::kTimedOut, "timed out");
  });
  world.add_grid(1, 1, 32, [&] {
    emulator::require(device::symm_barrier(fleet.context(1), 1) == SymmStatus::kAborted, "aborted");
  });
  EXPECT_EQ(world.run(), "");
}

TEST(SymmBarrier, RefusesWhatItCannot) {
  Fleet fleet(2), far(2, 1);
  emulator::run_kernel(0, 1, 32, [&] {
    emulator::require(device::symm_barrier(fleet.context(0), kSymmBarriers) == SymmStatus::kInvalid,
                      "number");
    emulator::require(device::symm_barrier(far.context(0), 0) == SymmStatus::kUnreachable, "far");
  });
}

}  // namespace
}  // namespace verbena::device_test
