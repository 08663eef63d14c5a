// What signals, fences, gets and quiets order, on the way of loads and stores and where a NIC writes: data is
// plain, and ThreadSanitizer judges.
#include <gtest/gtest.h>

#include "device/emulator/world.h"
#include "device/support/run_kernel.h"
#include "device/symm/fleet.h"
#include "device/symm/host_proxy.h"
#include "verbena/device/barrier.cuh"
#include "verbena/device/collectives/encoded_put.cuh"
#include "verbena/device/symm_c.cuh"

namespace verbena::device_test {
namespace {

using device::BlockGroup;
using device::Order;
using device::Scope;
using emulator::require;
using emulator::require_done;
using emulator::World;

constexpr auto kSet = SymmSignalOperation::kSet, kAdd = SymmSignalOperation::kAdd;
constexpr uint32_t kThreads = 64;

void write(uint64_t* word, uint64_t value) {
  device::store<Order::kWeak, Scope::kThreads>(word, value);
}
uint64_t read(const uint64_t* word) {
  return device::load<Order::kWeak, Scope::kThreads>(word);
}
int64_t number(const void* pointer) {
  return static_cast<int64_t>(reinterpret_cast<uint64_t>(pointer));
}

class SymmOrderTest : public testing::TestWithParam<uint64_t> {
 protected:
  // Each thread of rank 0's block writes a word of rank 1's; `tell` by the block, `hear` by rank 1's; whose
  // threads each read what another one's partner wrote.
  template <typename Tell, typename Hear>
  void pass_on(const Tell& tell, const Hear& hear) {
    Fleet fleet(2);
    World world(GetParam());
    world.add_grid(0, 1, kThreads, [&] {
      const SymmContext& mine = fleet.context(0);
      write(device::symm_lsa_ptr(mine, fleet.data<uint64_t>(0), 1) + device::thread_index(), 7);
      tell(fleet, mine);
    });
    world.add_grid(1, 1, kThreads, [&] {
      hear(fleet, fleet.context(1));
      require(read(fleet.data<uint64_t>(1) + (device::thread_index() + 17) % kThreads) == 7,
              "what was written");
    });
    EXPECT_EQ(world.run(), "");
  }
  static void wait(const SymmContext& mine) {
    require_done(
        device::symm_signal_wait_until<int64_t>(mine, 3, SymmCompare::kEqual, 5, nullptr, BlockGroup{}),
        "wait");
  }
  // The flag is at rank 1, behind the data.
  static uint64_t* flag(Fleet& fleet, int32_t rank) { return fleet.data<uint64_t>(rank, 8192); }
  static void raise(Fleet& fleet, uint32_t by) {
    if (device::thread_index() == by) device::store_relaxed<Scope::kSystem>(flag(fleet, 1), 1);
  }
  static void await_flag(Fleet& fleet) {
    while (device::load_relaxed<Scope::kSystem>(flag(fleet, 1)) == 0) {
    }
    device::symm_fence<Scope::kSystem>();
  }
};
INSTANTIATE_TEST_SUITE_P(Seeds, SymmOrderTest, testing::Range<uint64_t>(0, 5));

TEST_P(SymmOrderTest, ASignalIsBehindWhatTheBlockDid) {
  for (const auto operation : {kSet, kAdd}) {
    pass_on(
        [&](Fleet&, const SymmContext& mine) {
          require_done(device::symm_signal(mine, 3, 1, 5, operation, BlockGroup{}), "signal");
        },
        [](Fleet&, const SymmContext& mine) { wait(mine); });
  }
}

TEST_P(SymmOrderTest, FencesOrderRelaxedFlags) {
  pass_on(
      [](Fleet& fleet, const SymmContext&) {
        device::sync_block();
        device::symm_fence<Scope::kSystem>();
        raise(fleet, 40);
      },
      [](Fleet& fleet, const SymmContext&) { await_flag(fleet); });
}

TEST_P(SymmOrderTest, QuietIsAFenceForEachThread) {
  for (const bool of_one_peer : {false, true}) {
    for (const uint32_t teller : {0, 40}) {
      pass_on(
          [&](Fleet& fleet, const SymmContext& mine) {
            require((of_one_peer ? device::symm_quiet(mine, 1, BlockGroup{})
                                 : device::symm_quiet(mine, BlockGroup{})) == SymmStatus::kDone,
                    "quiet");
            raise(fleet, teller);
          },
          [](Fleet& fleet, const SymmContext&) { await_flag(fleet); });
    }
  }
}

// By their C names, between blocks of a GPU and between GPUs.
TEST_P(SymmOrderTest, FencesByTheirNumbers) {
  for (const int32_t scope : {1, 2}) {
    uint64_t data = 0, told = 0;
    Fleet fleet(1);
    const int64_t context = number(&fleet.context(0));
    World world(GetParam());
    const auto tell = [&] {
      write(&data, 7);
      require(symm_fence(context, scope) == 0, "fence");
      device::store_relaxed<Scope::kSystem>(&told, 1);
    };
    const auto hear = [&] {
      while (device::load_relaxed<Scope::kSystem>(&told) == 0) {
      }
      require(symm_fence(context, scope) == 0, "fence");
      require(read(&data) == 7, "data");
    };
    if (scope == 1) {
      world.add_grid(0, 2, 1, [&] { device::block_index() == 0 ? tell() : hear(); });
    } else {
      world.add_grid(0, 1, 1, tell);
      world.add_grid(1, 1, 1, hear);
    }
    EXPECT_EQ(world.run(), "");
  }
}

TEST_P(SymmOrderTest, WhatWasGotIsThereForAllThreads) {
  constexpr uint64_t kRows = 8, kRowBytes = kThreads * 8;
  const auto get = [](const SymmContext& mine, uint64_t* to, const uint64_t* from) {
    return device::symm_get(mine, to, from, kRows * kRowBytes, 1, BlockGroup{});
  };
  const auto get_rows = [](const SymmContext& mine, uint64_t* to, const uint64_t* from) {
    return device::symm_get_rows(mine, to, kRowBytes, from, kRowBytes, kRowBytes, kRows, 1, BlockGroup{});
  };
  const auto get_async = [](const SymmContext& mine, uint64_t* to, const uint64_t* from) {
    device::SymmRequest asked;
    const SymmStatus status =
        device::symm_get_async(mine, to, from, kRows * kRowBytes, 1, &asked, BlockGroup{});
    require(device::symm_request_test(mine, asked), "a load was waited for");
    return status;
  };
  const auto check = [&](const auto& way) {
    Fleet fleet(2);
    std::vector<uint64_t> got(kThreads * kRows);
    for (size_t i = 0; i < got.size(); ++i) fleet.data<uint64_t>(1)[i] = i + 1;
    emulator::run_kernel(GetParam(), 1, kThreads, [&] {
      require_done(way(fleet.context(0), got.data(), fleet.data<uint64_t>(0)), "get");
      for (uint64_t i = kThreads - 1 - device::thread_index(); i < got.size(); i += kThreads)
        require(read(got.data() + i) == i + 1, "what was got");
    });
  };
  check(get);
  check(get_rows);
  check(get_async);
}

TEST_P(SymmOrderTest, TheSourceOfRowsAndPiecesIsAllThreadsAgain) {
  constexpr uint64_t kRows = 8, kRowBytes = kThreads * 8;
  const auto check = [](const auto& put) {
    Fleet fleet(2);
    std::vector<uint64_t> source(kThreads * kRows, 7);
    emulator::run_kernel(GetParam(), 1, kThreads, [&] {
      require_done(put(fleet.context(0), fleet.data(0), source.data()), "put");
      for (uint64_t i = kThreads - 1 - device::thread_index(); i < source.size(); i += kThreads)
        write(source.data() + i, 9);
    });
    for (uint64_t i = 0; i < source.size(); ++i) ASSERT_EQ(fleet.data<uint64_t>(1)[i], 7U) << i;
  };
  check([](const SymmContext& mine, uint8_t* to, const uint64_t* from) {
    return device::symm_put_rows(mine, to, kRowBytes, from, kRowBytes, kRowBytes, kRows, 1, BlockGroup{});
  });
  check([](const SymmContext& mine, uint8_t* to, const uint64_t* from) {
    constexpr uint64_t kHalf = kRows * kRowBytes / 2;
    const SymmPiece pieces[] = {{to, from, kHalf}, {to + kHalf, from + kHalf / 8, kHalf}};
    return device::symm_put_pieces(mine, pieces, 2, 1, BlockGroup{});
  });
}

// No thread of the group finds its signal reset before it has come to that.
TEST_P(SymmOrderTest, AResetIsBehindWhatTheBlockDid) {
  Fleet fleet(1);
  fleet.context(0).signals[9] = 42;
  emulator::run_kernel(GetParam(), 1, kThreads, [&] {
    const SymmContext& mine = fleet.context(0);
    require(device::symm_signal_read(mine, 9) == 42, "not yet");
    require_done(device::symm_signal_reset(mine, 9, BlockGroup{}), "reset");
  });
  EXPECT_EQ(fleet.context(0).signals[9], 0U);
}

// Threads encode and decode elements of others' tiles, and put others' words; in a block, and in all blocks.
TEST_P(SymmOrderTest, EncodedElementsAreAllThreads) {
  constexpr uint32_t kElements = 4 * device::kTileElements + 5;
  constexpr uint64_t kSlot = 0, kStaging = 16 << 10;
  const auto check = [](uint32_t blocks, const auto& group_of) {
    Fleet fleet(2);
    std::vector<uint16_t> sent(kElements), got(kElements);
    for (uint32_t i = 0; i < kElements; ++i) sent[i] = static_cast<uint16_t>(0x3f80 + i);
    World world(GetParam());
    world.add_grid(0, blocks, kThreads, [&] {
      require_done(device::symm_put_encoded_signal_async(fleet.context(0), fleet.data(0, kSlot),
                                                         fleet.data(0, kStaging), sent.data(), kElements, 1,
                                                         3, 5, kSet, group_of(0)),
                   "put");
    });
    world.add_grid(1, blocks, kThreads, [&] {
      const auto group = group_of(1);
      require_done(device::symm_signal_wait_until<int64_t>(fleet.context(1), 3, SymmCompare::kEqual, 5,
                                                           nullptr, group),
                   "wait");
      device::symm_decode(got.data(), fleet.data(1, kSlot), kElements, group);
      for (uint32_t i = group.size() - 1 - group.rank(); i < kElements; i += group.size())
        require(device::load<Order::kWeak, Scope::kThreads>(got.data() + i) == sent[i], "an element");
    });
    EXPECT_EQ(world.run(), "");
  };
  check(1, [](int32_t) { return BlockGroup{}; });
  uint64_t arrived[2] = {}, words[2][device::GridGroup::kWords] = {};
  check(2, [&](int32_t rank) {
    return device::GridGroup{{&arrived[rank], 2}, words[rank], device::WaitLimits::within(1'000'000'000'000)};
  });
}

// As a NIC: data, then the word.
TEST_P(SymmOrderTest, WhatANicWroteIsThereBehindItsWords) {
  HostProxy proxy(1, 3);
  SymmContext& context = proxy.context();
  auto* const data = proxy.data<uint64_t>(0);
  const auto host = [&] {
    for (uint64_t i = 0; i < kThreads; ++i) data[i] = 7;
    __atomic_fetch_add(context.remote_signals + 3, 5, __ATOMIC_RELEASE);
    while (!proxy.take(0)) emulator::yield();
    for (uint64_t i = 0; i < kThreads; ++i) data[kThreads + i] = 8;
    __atomic_store_n(context.arrivals + (kSymmBarriers + 2) * 2 + 1, 1, __ATOMIC_RELEASE);
  };
  emulator::run_beside(host, GetParam(), 1, kThreads, [&] {
    const uint64_t me = device::thread_index();
    wait(context);
    require(read(data + (me + 17) % kThreads) == 7, "behind a signal");
    require_done(device::symm_barrier(context, 2), "barrier");
    require(read(data + kThreads + (me + 17) % kThreads) == 8, "behind a barrier");
  });
}

// What each thread of the block has put for itself is complete when the block's call returns.
TEST_P(SymmOrderTest, TheBlockWaitsForAllOfItsThreadsPuts) {
  for (const bool flushes : {false, true}) {
    HostProxy proxy(1, 7);
    const auto host = [&] {
      while (proxy.count_taken(0) < kThreads) {
        if (proxy.take(0)) proxy.complete(0), proxy.consume(0);
        emulator::yield();
      }
    };
    emulator::run_beside(host, GetParam(), 1, kThreads, [&] {
      const uint64_t at = 16 * device::thread_index();
      require_done(device::symm_put_async(proxy.context(), proxy.data(at), proxy.data(at), 8, 1), "put");
      const BlockGroup block;
      require((flushes ? device::symm_flush(proxy.context(), block)
                       : device::symm_quiet(proxy.context(), block)) == SymmStatus::kDone,
              "complete");
      require(device::load_relaxed<Scope::kSystem>(&proxy.context().queues.progress->completed) == kThreads,
              "all of it");
    });
  }
}

}  // namespace
}  // namespace verbena::device_test
