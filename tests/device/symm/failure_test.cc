// Waits that end by time: what is told of them, to whom, and that nobody waits on.
#include <gtest/gtest.h>

#include "device/emulator/world.h"
#include "device/support/run_kernel.h"
#include "device/symm/fleet.h"
#include "device/symm/host_proxy.h"
#include "verbena/device/symm.cuh"

namespace verbena::device_test {
namespace {

using emulator::require;
using emulator::require_done;
using emulator::World;

struct Failure {
  SymmWait wait;
  uint32_t number, peer, rank;

  explicit Failure(uint64_t bits)
      : wait(static_cast<SymmWait>(bits & 0xff)),
        number(static_cast<uint32_t>(bits >> kSymmFailureNumber) & 0xffff),
        peer(static_cast<uint32_t>(bits >> kSymmFailurePeer) & kSymmNobody),
        rank(static_cast<uint32_t>(bits >> kSymmFailureRank) & kSymmNobody) {}
  bool operator==(const Failure&) const = default;
  Failure(SymmWait of, uint32_t about, uint32_t whom, uint32_t who)
      : wait(of), number(about), peer(whom), rank(who) {}
};

// Rank 2 never comes: who waits for it tells all, and those ends are everybody's.
TEST(SymmFailure, ABarrierTellsWhoHasNotCome) {
  for (uint64_t seed = 0; seed < 6; ++seed) {
    Fleet fleet(3);
    fleet.context(0).timeout_ns = 20'000;
    emulator::run_on_ranks(seed, 2, 1, 32, [&](int32_t rank) {
      require(device::symm_barrier(fleet.context(rank), 7) == SymmStatus::kTimedOut, "without rank 2");
    });
    for (int32_t rank = 0; rank < 3; ++rank)
      EXPECT_EQ(Failure(*fleet.context(rank).failure), Failure(SymmWait::kBarrier, 7, 2, 0)) << rank;
  }
}

TEST(SymmFailure, EveryWaitOfTheTeamEndsAfterwards) {
  Fleet fleet(2);
  *fleet.context(1).failure = 1;  // as a peer tells
  World world;
  world.add_grid(1, 1, 64, [&] {
    const SymmContext& mine = fleet.context(1);
    const device::BlockGroup block;
    require(device::symm_barrier(mine, 0, block) == SymmStatus::kTimedOut, "barrier");
    require(device::symm_lsa_barrier(mine, 0, block) == SymmStatus::kTimedOut, "barrier in reach");
    require(device::symm_signal_wait_until<int64_t>(mine, 0, SymmCompare::kEqual, 1, nullptr, block) ==
                SymmStatus::kTimedOut,
            "signal");
    require_done(device::symm_signal_wait_until<int64_t>(mine, 0, SymmCompare::kEqual, 0, nullptr, block),
                 "what is there is there");
  });
  EXPECT_EQ(world.run(), "");
  EXPECT_EQ(*fleet.context(1).failure, 1U) << "the first stays";
}

TEST(SymmFailure, WaitsOfEachKindAreTold) {
  struct Case {
    Failure expected;
    std::function<SymmStatus(const SymmContext&)> wait;
  };
  const Case cases[] = {
      {{SymmWait::kLsaBarrier, 100, 1, 0},
       [](const SymmContext& mine) { return device::symm_lsa_barrier(mine, 100, device::ThreadGroup{}); }},
      {{SymmWait::kSignal, 200, kSymmNobody, 0},
       [](const SymmContext& mine) {
         return device::symm_signal_wait_until<int64_t>(mine, 200, SymmCompare::kEqual, 1);
       }},
  };
  for (const Case& one : cases) {
    Fleet fleet(2);
    fleet.context(0).timeout_ns = 20'000;
    emulator::run_kernel(0, 1, 1,
                         [&] { require(one.wait(fleet.context(0)) == SymmStatus::kTimedOut, "time"); });
    EXPECT_EQ(Failure(*fleet.context(0).failure), one.expected);
    EXPECT_EQ(Failure(*fleet.context(1).failure), one.expected) << "and the peer";
  }
}

// The proxy does nothing: what waits for it is told of, and the peer by a descriptor, if there is room.
TEST(SymmFailure, AskingTheProxyIsToldToo) {
  for (const bool is_full : {false, true}) {
    HostProxy proxy(1, 1);
    SymmContext& context = proxy.context();
    uint64_t* const failure = proxy.data<uint64_t>(4096);
    context.failure = failure;
    context.timeout_ns = 20'000;
    emulator::run_kernel(0, 1, 1, [&] {
      auto* const data = proxy.data();
      require_done(device::symm_put_async(context, data, data, 8, 1), "one of two");
      if (is_full) {
        require_done(device::symm_put_async(context, data, data, 8, 1), "two of two");
        require(device::symm_put_async(context, data, data, 8, 1) == SymmStatus::kTimedOut, "no room");
      } else {
        require(device::symm_quiet(context) == SymmStatus::kTimedOut, "not complete");
      }
    });
    EXPECT_EQ(Failure(*failure), is_full ? Failure(SymmWait::kRequest, 0, 1, 0)
                                         : Failure(SymmWait::kCompletion, 0, kSymmNobody, 0));
    proxy.take(0);
    const auto told = proxy.take(0);
    ASSERT_TRUE(told);
    if (is_full) continue;
    EXPECT_EQ(operation_of(*told), PutOperation::kWriteWord);
    EXPECT_EQ(peer_of(*told), 41U);
    EXPECT_EQ(told->operand, *failure);
    EXPECT_EQ(told->place, proxy.offset_of(failure));
  }
}

}  // namespace
}  // namespace verbena::device_test
