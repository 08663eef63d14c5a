// Kernels as TileScale generates them, by its names and NVSHMEM's, on ranks in reach of each other.
#include <gtest/gtest.h>

#include "device/support/run_kernel.h"
#include "device/symm/fleet.h"
#include "device/symm/host_proxy.h"
#include "device/symm/names_kernels.h"

namespace verbena::device_test {
namespace {

class SymmNamesTest : public testing::TestWithParam<uint64_t> {
 protected:
  static constexpr int32_t kRanks = 3;

  // `kernel(rank)` on every rank, by blocks of `threads`.
  template <typename Kernel>
  void run(uint32_t blocks, uint32_t threads, const Kernel& kernel) {
    emulator::run_on_ranks(GetParam(), kRanks, blocks, threads, [&](int32_t rank) {
      write_table(fleet_, rank, [](int32_t) { return true; });
      kernel(rank);
    });
  }

  Fleet fleet_{kRanks};
};
INSTANTIATE_TEST_SUITE_P(Schedules, SymmNamesTest, testing::Range<uint64_t>(0, 4));

TEST_P(SymmNamesTest, PutsAreSignaledAndWaitedFor) {
  fill_ring(fleet_);
  std::vector<std::vector<float>> sums(kRanks, std::vector<float>(128));
  run(2, 64, [&](int32_t rank) { run_ring(fleet_, rank, sums); });
  EXPECT_TRUE(is_doubled(sums));
}
TEST_P(SymmNamesTest, EveryScope) {
  run(1, 64, [&](int32_t rank) { every_scope(fleet_, rank); });
}
TEST_P(SymmNamesTest, BroadcastAndCollect) {
  run(1, 64, [&](int32_t rank) { broadcast_and_collect(fleet_, rank); });
}
TEST_P(SymmNamesTest, AValueIsStored) {
  run(1, 1, [&](int32_t rank) { store_a_value(fleet_, rank, [](int32_t) { return true; }); });
}

TEST_P(SymmNamesTest, ASourceIsTheWholeGroups) {
  run(1, 64, [&](int32_t rank) {
    auto* const mine = fleet_.data<uint32_t>(rank);
    const uint32_t me = device::thread_index();
    const int next = (rank + 1) % kRanks, before = (rank + kRanks - 1) % kRanks;
    for (uint32_t i = 4 * me; i < 4 * me + 4; ++i) mine[i] = static_cast<uint32_t>(1000 * rank) + i;
    nvshmemx_putmem_block(mine + 1024, mine, 1024, next);
    require_done(nvshmemx_barrier_all_block(), "barrier");
    for (uint32_t i = me; i < 256; i += 64)
      require(mine[1024 + i] == static_cast<uint32_t>(1000 * before) + i, "what was put");
  });
}

TEST_P(SymmNamesTest, AWordIsAskedForAgainAndAgain) {
  run(1, 1, [&](int32_t rank) {
    const int next = (rank + 1) % kRanks, before = (rank + kRanks - 1) % kRanks;
    int* const word = fleet_.data<int>(rank);
    auto* const signal = fleet_.data<uint64_t>(rank, 64);
    uint32_t* const data = fleet_.data<uint32_t>(rank, 128);
    require_done(nvshmem_int_p(word, 9, next), "a value");
    require(tl::wait_eq(word, 9) == device::WaitResult::kReached, "what came");
    data[0] = static_cast<uint32_t>(70 + rank);
    nvshmem_putmem(data + 1, data, 4, next);
    nvshmemx_signal_op(signal, 5, NVSHMEM_SIGNAL_SET, next);
    while (nvshmem_signal_fetch(signal) != 5) device::pause(20);
    require(data[1] == static_cast<uint32_t>(70 + before), "what is behind the signal");
  });
}

// Copies by loads and stores, with barriers of TileScale's own protocol: many rounds on the same words.
TEST(SymmNames, CopiesBetweenThoseInReach) {
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

// By a NIC, which may let a put overtake another one: the second put leaves once the first is complete.
TEST(SymmNames, AFenceWaitsForPutsByNics) {
  for (uint64_t seed = 0; seed < 4; ++seed) {
    HostProxy proxy(1, 2);
    const auto host = [&] {
      while (!proxy.take(0)) emulator::yield();
      proxy.consume(0);
      for (int look = 0; look < 200; ++look) {
        require(!proxy.take(0), "nothing leaves before the data is complete");
        emulator::yield();
      }
      proxy.complete(0);
      while (!proxy.take(0)) emulator::yield();
      proxy.consume(0);
      proxy.complete(0);
    };
    emulator::run_beside(host, seed, 1, 1, [&] {
      std::fill_n(tl::detail::find_table(), tl::kTilescaleTableWords, 0);
      tl::detail::find_table()[tl::kTilescaleTableWords - 1] = reinterpret_cast<uint64_t>(&proxy.context());
      require_done(nvshmem_putmem_nbi(proxy.data(), proxy.data(64), 8, 1), "data");
      require_done(nvshmem_fence(), "fence");
      require_done(nvshmem_putmem_nbi(proxy.data(8), proxy.data(72), 8, 1), "flag");
    });
  }
}

// A table without a team: TileScale's own names work, NVSHMEM's say so.
TEST(SymmNames, WithoutATeam) {
  emulator::run_kernel(0, 1, 1, [] {
    std::fill_n(tl::detail::find_table(), tl::kTilescaleTableWords, 0);
    char byte = 0;
    uint64_t word = 0;
    require(nvshmem_quiet() == SymmStatus::kUnreachable && nvshmem_fence() == SymmStatus::kUnreachable &&
                nvshmem_barrier_all() == SymmStatus::kUnreachable &&
                nvshmem_putmem(&byte, &byte, 1, 0) == SymmStatus::kUnreachable &&
                nvshmem_getmem(&byte, &byte, 1, 0) == SymmStatus::kUnreachable &&
                nvshmemx_signal_op(&word, 1, NVSHMEM_SIGNAL_SET, 0) == SymmStatus::kUnreachable &&
                nvshmem_ptr(&byte, 0) == nullptr && nvshmem_my_pe() == 0,
            "unreachable");
  });
}

}  // namespace
}  // namespace verbena::device_test
