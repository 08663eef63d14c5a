// Kernels as TileScale generates them, by its names and NVSHMEM's, on teams of every shape.
#include <gtest/gtest.h>

#include <nvshmem.h>
#include <nvshmemx.h>
#include <tl_templates/cuda/common.h>
#include <tl_templates/cuda/distributed.h>
#include <tl_templates/cuda/intrin.h>
#include <tl_templates/cuda/ldst.h>
#include <tl_templates/cuda/sync.h>

#include "device/emulator/sanitizer.h"
#include "device/proxy/support/rdma_fleet.h"
#include "device/symm/fleet.h"

namespace verbena::device_test {
namespace {

using emulator::require;

struct Case {
  int32_t ranks, domain_ranks;
};

// What the host writes before a launch; all threads of a block, first.
template <typename Ranks, typename IsInReach>
void write_table(Ranks& fleet, int32_t rank, const IsInReach& is_in_reach) {
  if (device::thread_index() == 0) {
    uint64_t* const table = tl::detail::find_table();
    std::fill_n(table, tl::kTilescaleTableWords, 0);
    table[0] = static_cast<uint64_t>(rank);
    table[1] = static_cast<uint64_t>(fleet.size());
    for (int32_t peer = 0; peer < fleet.size(); ++peer)
      table[2 + peer] = is_in_reach(peer) ? reinterpret_cast<uint64_t>(fleet.data(peer)) : 0;
    table[tl::kTilescaleTableWords - 1] = reinterpret_cast<uint64_t>(&fleet.context(rank));
  }
  device::sync_block();
}

class NamesTest : public testing::TestWithParam<Case> {
 protected:
  NamesTest() : fleet_(make_shape(GetParam().ranks, GetParam().domain_ranks)) {}

  // `kernel(rank)` on every rank, by blocks of `threads`.
  template <typename Kernel>
  void run(uint32_t blocks, uint32_t threads, const Kernel& kernel) {
    EXPECT_EQ(run_on_all(fleet_, 1, blocks, threads,
                         [&](int32_t rank) {
                           write_table(fleet_, rank, [&](int32_t peer) { return is_in_reach(rank, peer); });
                           kernel(rank);
                         }),
              "");
  }
  bool is_in_reach(int32_t rank, int32_t peer) const {
    return rank / GetParam().domain_ranks == peer / GetParam().domain_ranks;
  }

  RdmaFleet fleet_;
};
INSTANTIATE_TEST_SUITE_P(Teams, NamesTest, testing::Values(Case{2, 1}, Case{3, 3}, Case{4, 2}),
                         [](const auto& one) {
                           return std::to_string(one.param.ranks) + "By" +
                                  std::to_string(one.param.domain_ranks);
                         });

// ---- What TileScale's code generator writes for T.putmem_nbi_block, T.signal_op, T.signal_wait_until, ...
// ----

// A ring: each block sends its part to the next rank, and doubles what has come.
void ring_kernel(float* A, float* B, uint64_t* signals, float* sums) {
  const int bx = static_cast<int>(device::block_index()), tx = static_cast<int>(device::thread_index());
  const int mype = nvshmem_my_pe();
  const int npes = nvshmem_n_pes();
  nvshmemx_putmem_signal_nbi_block((&(B[bx * 64])), (&(A[bx * 64])), 256, (&(signals[bx])), 1,
                                   NVSHMEM_SIGNAL_ADD, (mype + 1) % npes);
  if (tx == 0) {
    nvshmem_signal_wait_until((&(signals[bx])), NVSHMEM_CMP_GE, 1);
  }
  device::sync_block();
  sums[(bx * 64) + tx] = B[(bx * 64) + tx] * 2.000000e+00f;
  nvshmem_quiet();
}

TEST_P(NamesTest, PutsAreSignaledAndWaitedFor) {
  for (int32_t rank = 0; rank < fleet_.size(); ++rank) {
    for (int i = 0; i < 128; ++i) fleet_.data<float>(rank)[i] = static_cast<float>(1000 * rank + i);
  }
  std::vector<std::vector<float>> sums(static_cast<size_t>(fleet_.size()), std::vector<float>(128));
  run(2, 64, [&](int32_t rank) {
    ring_kernel(fleet_.data<float>(rank), fleet_.data<float>(rank, 4096), fleet_.data<uint64_t>(rank, 8192),
                sums[static_cast<size_t>(rank)].data());
  });
  for (int32_t rank = 0; rank < fleet_.size(); ++rank) {
    const int32_t before = (rank + fleet_.size() - 1) % fleet_.size();
    for (int i = 0; i < 128; ++i)
      ASSERT_EQ(sums[static_cast<size_t>(rank)][static_cast<size_t>(i)],
                2.0f * static_cast<float>(1000 * before + i));
  }
}

// Puts and gets by a thread, a warp and a block, told by words and by a barrier.
TEST_P(NamesTest, EveryScope) {
  constexpr size_t kBytes = 96;
  run(1, 64, [&](int32_t rank) {
    auto* const mine = fleet_.data(rank);
    const int next = (rank + 1) % fleet_.size(), before = (rank + fleet_.size() - 1) % fleet_.size();
    const uint32_t me = device::thread_index();
    for (uint32_t i = me; i < 3 * kBytes; i += 64)
      mine[i] = static_cast<uint8_t>(17 * rank + static_cast<int>(i));
    device::sync_block();
    if (me == 0) nvshmem_putmem(mine + 4096, mine, kBytes, next);
    if (me >= 32) nvshmemx_putmem_nbi_warp(mine + 4096 + kBytes, mine + kBytes, kBytes, next);
    device::sync_block();
    nvshmemx_putmem_signal_block(mine + 4096 + 2 * kBytes, mine + 2 * kBytes, kBytes,
                                 fleet_.data<uint64_t>(rank, 8192), 5, NVSHMEM_SIGNAL_SET, next);
    require(nvshmemx_barrier_all_block() == SymmStatus::kDone, "barrier");
    for (uint32_t i = me; i < 3 * kBytes; i += 64)
      require(mine[4096 + i] == static_cast<uint8_t>(17 * before + static_cast<int>(i)), "what was put");
    require(nvshmem_signal_fetch(fleet_.data<uint64_t>(rank, 8192)) == 5, "the signal");
    if (me == 0) {
      nvshmem_getmem_nbi(mine + 12288, mine, kBytes, before);
      nvshmem_quiet();
      require(mine[12288 + kBytes - 1] == static_cast<uint8_t>(17 * before + static_cast<int>(kBytes) - 1),
              "got");
    }
    nvshmemx_getmem_block(mine + 16384, mine, 2 * kBytes, before);
    for (uint32_t i = me; i < 2 * kBytes; i += 64)
      require(mine[16384 + i] == static_cast<uint8_t>(17 * before + static_cast<int>(i)), "got");
    require(nvshmemx_sync_all_block() == SymmStatus::kDone, "sync");
    if (me == 0) {
      nvshmem_fence();
      require(nvshmem_barrier_all() == SymmStatus::kDone && nvshmem_sync_all() == SymmStatus::kDone,
              "by a thread");
      nvshmemx_signal_op(fleet_.data<uint64_t>(rank, 8200), 3, NVSHMEM_SIGNAL_ADD, next);
      require(nvshmem_signal_wait_until(fleet_.data<uint64_t>(rank, 8200), NVSHMEM_CMP_EQ, 3) == 3,
              "a signal");
      require(nvshmemx_signal_op(fleet_.data<uint64_t>(rank, 8200), 3, 4, next) == SymmStatus::kInvalid,
              "no such operation");
    }
  });
}

TEST_P(NamesTest, BroadcastAndCollect) {
  run(1, 64, [&](int32_t rank) {
    auto* const numbers = fleet_.data<int32_t>(rank);
    const uint32_t me = device::thread_index();
    const int root = fleet_.size() - 1;
    if (me < 10) numbers[me] = 100 * rank + static_cast<int32_t>(me);
    require(
        nvshmemx_broadcast_block(NVSHMEM_TEAM_WORLD, numbers + 64, numbers, 10, root) == SymmStatus::kDone,
        "broadcast");
    if (me < 10) require(numbers[64 + me] == 100 * root + static_cast<int32_t>(me), "the root's");
    const nvshmem_team_t team = &fleet_.context(rank);
    require(nvshmemx_fcollectmem_block(team, numbers + 128, numbers, 40) == SymmStatus::kDone, "collect");
    for (uint32_t i = me; i < 10 * static_cast<uint32_t>(fleet_.size()); i += 64)
      require(numbers[128 + i] == 100 * static_cast<int32_t>(i / 10) + static_cast<int32_t>(i % 10), "all");
    require(nvshmem_team_my_pe(team) == rank && nvshmem_team_n_pes(NVSHMEM_TEAM_WORLD) == fleet_.size(),
            "places");
  });
}

// A value by itself: where stores reach.
TEST_P(NamesTest, AValueIsStored) {
  run(1, 1, [&](int32_t rank) {
    const int next = (rank + 1) % fleet_.size(), before = (rank + fleet_.size() - 1) % fleet_.size();
    int* const word = fleet_.data<int>(rank);
    require(nvshmem_int_p(word, 9 + rank, next) ==
                (is_in_reach(rank, next) ? SymmStatus::kDone : SymmStatus::kUnreachable),
            "a value");
    require(nvshmem_barrier_all() == SymmStatus::kDone, "barrier");
    require(*word == (is_in_reach(rank, before) ? 9 + before : 0), "what came");
  });
}

// Copies by loads and stores, with barriers of TileScale's own protocol: many rounds on the same words.
TEST(Names, CopiesBetweenThoseInReach) {
  constexpr int kRanks = 3;
  for (uint64_t seed = 0; seed < 4; ++seed) {
    Fleet fleet(kRanks);
    emulator::World world(seed);
    for (int rank = 0; rank < kRanks; ++rank) {
      world.add_grid(static_cast<uint32_t>(rank), 1, 64, [&fleet, rank] {
        write_table(fleet, rank, [](int) { return true; });
        auto* const mine = fleet.data<int32_t>(rank);
        const int next = (rank + 1) % kRanks, before = (rank + kRanks - 1) % kRanks;
        const auto me = static_cast<int>(device::thread_index());
        const auto expect = [me](const int32_t* from, int count, int wanted, const char* text) {
          if (me < count) require(from[me] == wanted + me, text);
        };
        require(tl::get_rank() == static_cast<uint64_t>(rank) && tl::get_num_ranks() == kRanks &&
                    tl::get_remote_base_ptr(1) == tl::get_uintptr_t(fleet.data(1)),
                "the table");
        for (int round = 1; round <= 4; ++round) {
          const int base = 100 * round;
          mine[me] = 1000 * rank + base + me;
          device::sync_block();
          tl::put_block<64>(mine + 64, mine, next);
          if (me < 32) tl::get_warp<16>(mine + 128, tl::get_uintptr_t(mine + 8), -1);
          require(tl::barrier_blocks(8192, rank, kRanks) == device::WaitResult::kReached, "met");
          expect(mine + 64, 64, 1000 * before + base, "what was put");
          expect(mine + 128, 16, 1000 * rank + base + 8, "its own");
          tl::get_block<64>(mine + 256, mine, next);
          if (me < 32) tl::put_warp<16>(tl::get_uintptr_t(mine + 512), mine + 4, next);
          device::sync_block();
          expect(mine + 256, 64, 1000 * next + base, "what was got");
          require(tl::sync_blocks(8192, rank, kRanks) == device::WaitResult::kReached, "all have looked");
          expect(mine + 512, 16, 1000 * before + base + 4, "what a warp put");
        }
      });
    }
    EXPECT_EQ(world.run(), "") << "seed " << seed;
  }
}

// A table without a team: TileScale's own names work, NVSHMEM's say so.
TEST(Names, WithoutATeam) {
  emulator::World world;
  world.add_grid(0, 1, 1, [] {
    std::fill_n(tl::detail::find_table(), tl::kTilescaleTableWords, 0);
    char byte = 0;
    uint64_t word = 0;
    require(nvshmem_quiet() == SymmStatus::kUnreachable &&
                nvshmem_barrier_all() == SymmStatus::kUnreachable &&
                nvshmem_putmem(&byte, &byte, 1, 0) == SymmStatus::kUnreachable &&
                nvshmem_getmem(&byte, &byte, 1, 0) == SymmStatus::kUnreachable &&
                nvshmemx_signal_op(&word, 1, NVSHMEM_SIGNAL_SET, 0) == SymmStatus::kUnreachable &&
                nvshmem_ptr(&byte, 0) == nullptr && nvshmem_my_pe() == 0,
            "unreachable");
  });
  EXPECT_EQ(world.run(), "");
}

}  // namespace
}  // namespace verbena::device_test
