// Signals: operations, comparisons, both widths, both words, and waits that end without success.
#include <gtest/gtest.h>

#include "device/emulator/world.h"
#include "device/support/run_kernel.h"
#include "device/symm/fleet.h"
#include "verbena/device/symm.cuh"

namespace verbena::device_test {
namespace {

using device::symm_signal;
using device::symm_signal_read;
using device::symm_signal_wait_until;
using emulator::require;
using emulator::require_done;
using emulator::World;
using enum SymmCompare;

constexpr auto kSet = SymmSignalOperation::kSet, kAdd = SymmSignalOperation::kAdd;

TEST(SymmSignal, SetAddAndReset) {
  Fleet fleet(2);
  emulator::run_kernel(0, 1, 1, [&] {
    const SymmContext &mine = fleet.context(0), &his = fleet.context(1);
    require_done(symm_signal(mine, 9, 1, 40, kSet), "set");
    require_done(symm_signal(mine, 9, 1, 2, kAdd), "add");
    require(symm_signal_read(his, 9) == 42 && symm_signal_read(mine, 9) == 0, "only at the peer");
    require(*device::symm_lsa_signal_ptr(mine, 1) == 0, "not in another signal");
    require(device::symm_lsa_signal_ptr(mine, 1)[9] == 42, "where the pointer leads");
    require(device::symm_signal_reset(his, 9) == SymmStatus::kDone && symm_signal_read(his, 9) == 0, "reset");
    require_done(symm_signal(his, 255, 1, uint64_t(-5), kAdd), "to oneself");
    require(symm_signal_read(his, 255) == uint64_t(-5), "wraps");
  });
}

TEST(SymmSignal, IsTheSumOfBothWords) {
  Fleet fleet(3, 2);
  emulator::run_kernel(0, 1, 1, [&] {
    const SymmContext &mine = fleet.context(0), &his = fleet.context(1);
    his.remote_signals[4] = 100;  // as a NIC does
    require_done(symm_signal(mine, 4, 1, 11, kAdd), "add");
    require(symm_signal_read(his, 4) == 111, "sum");
    require_done(symm_signal(mine, 4, 1, 7, kSet), "set");
    require(symm_signal_read(his, 4) == 7, "set is of the sum");
    his.remote_signals[4] += 3;
    require(symm_signal_read(his, 4) == 10, "and NICs go on adding");
    require(device::symm_signal_reset(his, 4) == SymmStatus::kDone && symm_signal_read(his, 4) == 0, "reset");
  });
}

TEST(SymmSignal, EveryComparisonInBothWidths) {
  Fleet fleet(1);
  fleet.context(0).timeout_ns = 5'000;
  emulator::run_kernel(0, 1, 1, [&] {
    const SymmContext& mine = fleet.context(0);
    const struct {
      SymmCompare compare;
      bool less, equal, greater;  // holds for such a value
    } cases[] = {{kEqual, false, true, false},   {kNotEqual, true, false, true},
                 {kGreater, false, false, true}, {kGreaterEqual, false, true, true},
                 {kLess, true, false, false},    {kLessEqual, true, true, false}};
    for (const auto& one : cases) {
      const struct {
        int64_t value;
        bool holds;
      } values[] = {{-8, one.less}, {-7, one.equal}, {6, one.greater}};
      for (const auto& [value, holds] : values) {
        // The upper half is no part of the 32-bit comparison.
        require_done(symm_signal(mine, 0, 0, uint64_t(uint32_t(value)) | uint64_t{5} << 32, kSet), "set");
        int32_t seen32 = 0;
        require((symm_signal_wait_until<int32_t>(mine, 0, one.compare, -7, &seen32) == SymmStatus::kDone) ==
                    holds,
                "32 bits");
        require(seen32 == value, "seen");
        require_done(symm_signal(mine, 0, 0, uint64_t(value), kSet), "set");
        require((symm_signal_wait_until<int64_t>(mine, 0, one.compare, -7) == SymmStatus::kDone) == holds,
                "64 bits");
      }
    }
  });
}

TEST(SymmSignal, AGroupAddsOnceAndWaitsTogether) {
  constexpr uint32_t kRounds = 5;
  for (uint64_t seed = 0; seed < 6; ++seed) {
    Fleet fleet(3);
    World world(seed);
    for (int32_t rank = 1; rank < 3; ++rank) {
      world.add_grid(static_cast<uint32_t>(rank), 2, 64, [&, rank] {
        for (uint32_t round = 0; round < kRounds; ++round)
          require_done(symm_signal(fleet.context(rank), 1, 0, 1, kAdd, device::BlockGroup{}), "signal");
      });
    }
    world.add_grid(0, 1, 64, [&] {
      require_done(symm_signal_wait_until<int64_t>(fleet.context(0), 1, kGreaterEqual, 4 * kRounds, nullptr,
                                                   device::BlockGroup{}),
                   "wait");
    });
    EXPECT_EQ(world.run(), "");
    EXPECT_EQ(fleet.context(0).signals[1], 4 * kRounds) << "blocks, not threads, count";
  }
}

// Each thread of each group has the value that ended its wait, while others go on adding.
template <typename T, typename Group>
void wait_and_look(const SymmContext& mine, const Group& group, uint64_t* sum) {
  for (T wanted = 1; wanted <= 20; wanted = static_cast<T>(wanted + 4)) {
    T seen = -1;
    require_done(symm_signal_wait_until<T>(mine, 1, kGreaterEqual, wanted, &seen, group), "wait");
    require(seen >= wanted && seen <= 20, "what ended the wait");
    device::fetch_add<device::Order::kRelaxed, device::Scope::kBlock>(sum, static_cast<uint64_t>(seen));
    group.sync();
    const uint64_t all = device::load_relaxed<device::Scope::kBlock>(sum);
    require(all == group.size() * static_cast<uint64_t>(seen), "the same for all");
    group.sync();
    if (group.elect()) device::store_relaxed<device::Scope::kBlock>(sum, 0);
    group.sync();
  }
}

TEST(SymmSignal, WhatEndedAWaitIsEverybodys) {
  for (uint64_t seed = 1; seed < 9; ++seed) {
    Fleet fleet(2);
    uint64_t sums[4] = {};
    World world(seed);
    world.add_grid(1, 1, 1, [&] {
      for (int i = 0; i < 20; ++i) require_done(symm_signal(fleet.context(1), 1, 0, 1, kAdd), "signal");
    });
    const auto wait = [&](const auto& group, uint64_t* sum) {
      const SymmContext& mine = fleet.context(0);
      wait_and_look<int64_t>(mine, group, sum);
      wait_and_look<int32_t>(mine, group, sum);
    };
    world.add_grid(0, 1, 160, [&] {
      const uint32_t thread = device::thread_index();
      if (thread < 32) return wait(device::WarpGroup{}, sums);
      if (thread < 96) return wait(device::WarpsGroup{32, 64, 2}, sums + 1);
      wait(device::WarpsGroup{96, 64, 5}, sums + 2);
    });
    world.add_grid(0, 1, 64, [&] { wait(device::BlockGroup{}, sums + 3); });
    EXPECT_EQ(world.run(), "");
  }
}

TEST(SymmSignal, WaitsInVainEnd) {
  Fleet fleet(1);
  fleet.context(0).timeout_ns = 5'000;
  emulator::run_kernel(0, 1, 1, [&] {
    int64_t seen = -1;
    require(symm_signal_wait_until<int64_t>(fleet.context(0), 0, kEqual, 1, &seen) == SymmStatus::kTimedOut,
            "time");
    require(seen == 0, "what it was");
    const uint32_t abort_word = 1;
    fleet.context(0).abort_word = &abort_word;
    require(symm_signal_wait_until<int64_t>(fleet.context(0), 0, kEqual, 1) == SymmStatus::kAborted, "abort");
  });
}

TEST(SymmSignal, RefusesWhatThereIsNot) {
  Fleet fleet(3, 2);
  emulator::run_kernel(0, 1, 1, [&] {
    const SymmContext& mine = fleet.context(0);
    require(symm_signal(mine, kSymmSignals, 1, 1, kAdd) == SymmStatus::kInvalid, "signal");
    require(symm_signal(mine, 0, 3, 1, kAdd) == SymmStatus::kInvalid, "rank");
    require(symm_signal(mine, 0, -1, 1, kAdd) == SymmStatus::kInvalid, "negative rank");
    require(symm_signal(mine, 0, 2, 1, kAdd) == SymmStatus::kUnreachable, "out of reach");
    require(symm_signal_wait_until<int64_t>(mine, kSymmSignals, kEqual, 0) == SymmStatus::kInvalid, "wait");
    require(device::symm_signal_reset(mine, kSymmSignals) == SymmStatus::kInvalid, "reset");
    require(!device::symm_team_lsa(mine, 2) && device::symm_team_lsa(mine, 1), "reach");
    require(device::symm_lsa_signal_ptr(mine, 2) == nullptr, "no pointer");
    require(device::symm_team_size(mine) == 3 && device::symm_team_lsa_size(mine) == 2, "sizes");
  });
}

}  // namespace
}  // namespace verbena::device_test
