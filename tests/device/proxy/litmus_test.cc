// Each promise of order between ranks, over NICs, in many rounds: what a rank sees must explain what it sees
// next.
#include <gtest/gtest.h>

#include "device/emulator/sanitizer.h"
#include "device/proxy/support/rdma_fleet.h"
#include "device/support/rank_counts.h"
#include "verbena/device/barrier.cuh"
#include "verbena/device/symm.cuh"

namespace verbena::device_test {
namespace {

using device::BlockGroup;
using device::Order;
using device::Scope;
using emulator::require;
using emulator::require_done;

constexpr auto kSet = SymmSignalOperation::kSet, kAdd = SymmSignalOperation::kAdd;
constexpr uint64_t kRounds = emulator::kSanitizer ? 10 : 60;
constexpr uint32_t kThreads = 32;

void write(uint64_t* word, uint64_t value) {
  device::store<Order::kWeak, Scope::kThreads>(word, value);
}
uint64_t read(const uint64_t* word) {
  return device::load<Order::kWeak, Scope::kThreads>(word);
}

// By the block: all words become `value`, or are it.
void write_all(uint64_t* words, uint64_t count, uint64_t value) {
  for (uint64_t i = device::thread_index(); i < count; i += device::threads_per_block())
    write(words + i, value);
  device::sync_block();
}
void expect_all(const uint64_t* words, uint64_t count, uint64_t value, const char* text) {
  for (uint64_t i = device::thread_index(); i < count; i += device::threads_per_block())
    if (read(words + i) != value)
      emulator::fail(std::string(text) + ": " + std::to_string(read(words + i)) + " instead of " +
                     std::to_string(value) + ", word " + std::to_string(i));
  device::sync_block();
}

// A block waits for another one of its grid.
void meet(const uint32_t* word, uint32_t round) {
  while (device::thread_index() == 0 && device::load_acquire<Scope::kGpu>(word) != round) {
  }
  device::sync_block();
}

void await(const SymmContext& mine, uint32_t signal, uint64_t value) {
  require_done(device::symm_signal_wait_until<int64_t>(mine, signal, SymmCompare::kGreaterEqual,
                                                       static_cast<int64_t>(value), nullptr, BlockGroup{}),
               "wait");
}

// Rank 0 tells in some way, rank 1 looks and says that it has: the round is over.
class LitmusTest : public testing::TestWithParam<uint64_t> {
 protected:
  template <typename Tell, typename Look>
  void play(const Tell& tell, const Look& look) {
    run_on_all(fleet_, GetParam(), 1, kThreads, [&](int32_t rank) {
      const SymmContext& mine = fleet_.context(rank);
      for (uint64_t round = 1; round <= kRounds; ++round) {
        if (rank == 0) {
          tell(mine, round);
          await(mine, 100, round);
          require_done(device::symm_flush(mine, BlockGroup{}), "flush");
        } else {
          look(mine, round);
          require_done(device::symm_signal(mine, 100, 0, 1, kAdd, BlockGroup{}), "has looked");
        }
      }
    });
    EXPECT_EQ(fleet_.proxy(0).error() + fleet_.proxy(1).error(), "");
  }

  RdmaFleet fleet_{make_shape(2)};
};
INSTANTIATE_TEST_SUITE_P(Seeds, LitmusTest, testing::Range<uint64_t>(0, 4));

TEST_P(LitmusTest, APutIsThereBeforeItsSignal) {
  play(
      [&](const SymmContext& mine, uint64_t round) {
        auto* const source = fleet_.data<uint64_t>(0, 65536);
        write_all(source, 2000, round);
        require_done(
            device::symm_put_signal_async(mine, fleet_.data(0), source, 16000, 1, 1, 1, kAdd, BlockGroup{}),
            "put");
      },
      [&](const SymmContext& mine, uint64_t round) {
        await(mine, 1, round);
        expect_all(fleet_.data<uint64_t>(1), 2000, round, "data");
      });
}

// Two blocks put through a queue each, and one of them signals for both: nobody waits for ever. softverbs
// carries out what one thread posts in its order whatever the queue; that the signal waits is drain_test's.
TEST_P(LitmusTest, OneSignalIsBehindAllBlocksPuts) {
  constexpr uint64_t kPartBytes = 16384, kWords = 2000;
  uint64_t arrived[2] = {};
  run_on_all(fleet_, GetParam(), 2, kThreads, [&](int32_t rank) {
    const SymmContext& mine = fleet_.context(rank);
    const uint64_t part = device::block_index() * kPartBytes;
    const bool is_first = device::block_index() == 0;
    const device::GridBarrier grid{&arrived[rank], 2};
    const auto meet_grid = [&] {
      require(grid.sync(device::WaitLimits::within(mine.timeout_ns)) == device::WaitResult::kReached, "grid");
    };
    for (uint64_t round = 1; round <= kRounds; ++round) {
      if (rank == 0) {
        auto* const source = fleet_.data<uint64_t>(0, 65536 + part);
        write_all(source, kWords, round);
        require_done(device::symm_put_async(mine, fleet_.data(0, part), source, 8 * kWords, 1, BlockGroup{}),
                     "put");
        meet_grid();
        if (is_first) {
          require_done(device::symm_signal_after_puts(mine, 9, 1, 1, kAdd, BlockGroup{}), "signal");
          await(mine, 100, round);
          require_done(device::symm_flush(mine, BlockGroup{}), "flush");
        }
        meet_grid();
      } else {
        await(mine, 9, round);
        expect_all(fleet_.data<uint64_t>(1, part), kWords, round, "data");
        meet_grid();
        if (is_first) require_done(device::symm_signal(mine, 100, 0, 1, kAdd, BlockGroup{}), "has looked");
      }
    }
  });
  EXPECT_EQ(fleet_.proxy(0).error() + fleet_.proxy(1).error(), "");
}

TEST_P(LitmusTest, AllPutsAreThereBeforeALaterSignal) {
  play(
      [&](const SymmContext& mine, uint64_t round) {
        auto* const source = fleet_.data<uint64_t>(0, 65536);
        write_all(source, 1000, round);
        require_done(device::symm_put_async(mine, fleet_.data(0), source, 8000, 1, BlockGroup{}), "put");
        require_done(device::symm_put_async(mine, fleet_.data(0, 32768), source, 8, 1, BlockGroup{}),
                     "another put");
        require_done(device::symm_signal(mine, 2, 1, round, kSet, BlockGroup{}), "signal");
      },
      [&](const SymmContext& mine, uint64_t round) {
        await(mine, 2, round);
        expect_all(fleet_.data<uint64_t>(1), 1000, round, "first");
        expect_all(fleet_.data<uint64_t>(1, 32768), 1, round, "second");
      });
}

TEST_P(LitmusTest, SignalsComeInOrder) {
  play(
      [&](const SymmContext& mine, uint64_t round) {
        require_done(device::symm_signal(mine, 3, 1, 1, kAdd, BlockGroup{}), "first");
        require_done(device::symm_signal(mine, 4, 1, round, kSet, BlockGroup{}), "second");
        require_done(device::symm_signal(mine, 5, 1, 1, kAdd, BlockGroup{}), "third");
      },
      [&](const SymmContext& mine, uint64_t round) {
        await(mine, 5, round);
        require(device::symm_signal_read(mine, 4) == round, "the one before");
        require(device::symm_signal_read(mine, 3) == round, "and before");
      });
}

// What is written over lands over.
TEST_P(LitmusTest, PutsToOnePlaceLandInOrder) {
  play(
      [&](const SymmContext& mine, uint64_t round) {
        auto* const sources = fleet_.data<uint64_t>(0, 65536);
        if (device::thread_index() == 0)
          for (uint64_t i = 0; i < 4; ++i) write(sources + i, round * 4 + i);
        for (uint64_t i = 0; i < 4; ++i)
          require_done(device::symm_put_async(mine, fleet_.data(0), sources + i, 8, 1, BlockGroup{}), "put");
        require_done(device::symm_signal(mine, 6, 1, 1, kAdd, BlockGroup{}), "signal");
      },
      [&](const SymmContext& mine, uint64_t round) {
        await(mine, 6, round);
        expect_all(fleet_.data<uint64_t>(1), 1, round * 4 + 3, "the last");
      });
}

// Each puts to the other, passes the barrier and looks at its own: at least one would miss it if the barrier
// did not complete what was put. Here both must see it.
TEST_P(LitmusTest, StoreBufferingThroughABarrier) {
  run_on_all(fleet_, GetParam(), 1, kThreads, [&](int32_t rank) {
    const SymmContext& mine = fleet_.context(rank);
    auto* const source = fleet_.data<uint64_t>(rank, 65536);
    for (uint64_t round = 1; round <= kRounds; ++round) {
      write_all(source, 1, round);
      require_done(device::symm_put_async(mine, fleet_.data(rank), source, 8, 1 - rank, BlockGroup{}), "put");
      require_done(device::symm_barrier(mine, 0), "barrier");
      expect_all(fleet_.data<uint64_t>(rank), 1, round, "the other's");
      require_done(device::symm_barrier(mine, 0), "both have looked");
    }
  });
}

// A writes to B by any path; after a barrier with B, C gets the data from B, although A did not write to C.
void expect_transitive(const FleetShape& shape, uint64_t seed) {
  RdmaFleet fleet(shape);
  const int32_t size = fleet.size();
  run_on_all(fleet, seed, 1, kThreads, [&](int32_t rank) {
    const SymmContext& mine = fleet.context(rank);
    const int32_t next = (rank + 1) % size, behind_it = (rank + 2) % size;
    auto *const source = fleet.data<uint64_t>(rank, 65536), *const got = source + 1024;
    for (uint64_t round = 1; round <= kRounds / 4; ++round) {
      write_all(source, 500, round * 100 + static_cast<uint64_t>(rank));
      require_done(device::symm_put_async(mine, fleet.data(rank), source, 4000, next, BlockGroup{}), "put");
      require_done(device::symm_barrier(mine, 1), "barrier");
      // Of rank + 2, what rank + 1 has put there.
      require_done(device::symm_get(mine, got, fleet.data(rank), 4000, behind_it, BlockGroup{}), "get");
      expect_all(got, 500, round * 100 + static_cast<uint64_t>(next), "what another one was told");
      require_done(device::symm_barrier(mine, 1), "all have looked");
    }
  });
}

TEST(Litmus, ABarrierIsTransitiveOfRanks) {
  for (const int32_t ranks : list_rank_counts({3}))
    expect_transitive(make_shape(ranks, ranks > 8 ? 4 : 1), static_cast<uint64_t>(ranks));
  expect_transitive(make_shape(4, 2), 2);
  FleetShape crossed = make_shape(4);
  crossed.domains = {0, 1, 1, 0};
  expect_transitive(crossed, 3);
}

// One block puts, meets the others of its grid, and another one passes the barrier for all.
TEST(Litmus, ABarrierCoversOtherBlocksPuts) {
  RdmaFleet fleet(make_shape(2));
  uint32_t met[2] = {}, left[2] = {};
  run_on_all(fleet, 5, 2, kThreads, [&](int32_t rank) {
    const SymmContext& mine = fleet.context(rank);
    auto* const source = fleet.data<uint64_t>(rank, 65536);
    for (uint32_t round = 1; round <= kRounds / 4; ++round) {
      if (device::block_index() == 1) {
        write_all(source, 1000, round);
        require_done(device::symm_put_async(mine, fleet.data(rank), source, 8000, 1 - rank, BlockGroup{}),
                     "put");
        if (device::thread_index() == 0) device::store_release<Scope::kGpu>(met + rank, round);
        meet(left + rank, round);
      } else {
        meet(met + rank, round);
        require_done(device::symm_barrier(mine, 0), "barrier");
        expect_all(fleet.data<uint64_t>(rank), 1000, round, "the other rank's other block's");
        require_done(device::symm_barrier(mine, 0), "both have looked");
        if (device::thread_index() == 0) device::store_release<Scope::kGpu>(left + rank, round);
      }
    }
  });
}

// Teams that share ranks, with ranks of their own numbers, at the same time.
TEST(Litmus, TeamsDoNotDisturbEachOther) {
  RdmaFleet fleet(make_shape(5, 2));
  const std::vector<std::vector<int32_t>> teams = {{4, 2, 0}, {3, 0, 1}, {2, 4}};
  for (const auto& members : teams) fleet.add_team(members);
  run_on_all(fleet, 7, static_cast<uint32_t>(teams.size()), kThreads, [&](int32_t rank) {
    const size_t team = device::block_index();
    const SymmContext& mine = fleet.context(rank, team + 1);
    const auto size = static_cast<int32_t>(teams[team].size());
    const uint64_t at = 4096 * team;
    for (uint64_t round = 1; mine.team_size != 0 && round <= kRounds / 3; ++round) {
      auto* const source = fleet.data<uint64_t>(rank, 65536 + at);
      write_all(source, 10, round * 10 + static_cast<uint64_t>(rank));
      for (int32_t peer = 0; peer < size; ++peer)
        require_done(device::symm_put_signal_async(
                         mine, fleet.data(rank, at + 128 * static_cast<uint64_t>(mine.team_rank)), source, 80,
                         peer, 1, 1, kAdd, BlockGroup{}),
                     "put");
      await(mine, 1, round * static_cast<uint64_t>(size));
      for (int32_t peer = 0; peer < size; ++peer)
        expect_all(fleet.data<uint64_t>(rank, at + 128 * static_cast<uint64_t>(peer)), 10,
                   round * 10 + static_cast<uint64_t>(teams[team][static_cast<size_t>(peer)]),
                   "of that member");
      require_done(device::symm_barrier(mine, 9), "barrier");
    }
  });
}

// A ring of two slots, many blocks and a slow lane: everything is put once.
TEST(Litmus, TinyQueuesWrapAround) {
  FleetShape shape = make_shape(2);
  shape.queues = {.count = 2, .depth = 2};
  shape.send_depth = 16;
  RdmaFleet fleet(shape);
  constexpr uint64_t kTimes = kRounds / 10;
  run_on_all(fleet, 3, 3, kThreads, [&](int32_t rank) {
    const SymmContext& mine = fleet.context(rank);
    for (uint64_t i = 0; i < kTimes; ++i)
      require_done(device::symm_signal(mine, 8, 1 - rank, 1, kAdd), "by each thread");
    await(mine, 8, 3 * kThreads * kTimes);
  });
  for (int32_t rank = 0; rank < 2; ++rank)
    EXPECT_EQ(fleet.context(rank).remote_signals[8], 3 * kThreads * kTimes);
}

}  // namespace
}  // namespace verbena::device_test
