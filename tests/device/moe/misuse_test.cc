// Misuse of dispatch and combine, and failures: refused or without effect on later calls.
#include <gtest/gtest.h>

#include <array>
#include <atomic>

#include "device/emulator/sanitizer.h"
#include "device/moe/exchange.h"
#include "device/ops/run_moe.cuh"

namespace verbena::device_test {
namespace {

using device::Bfloat16;
using Ranks = MoeRanks<Bfloat16>;
using Pairs = std::vector<MoePair<Bfloat16>>;

// Draw a pair in which both ranks have 9 tokens, of one expert each: token + first, modulo 4.
MoePair<Bfloat16> draw_full(Ranks& ranks, uint64_t seed, size_t first = 0) {
  MoePair<Bfloat16> pair = ranks.draw(seed, MoeOrder::kRows);
  for (uint32_t rank = 0; rank < 2; ++rank) {
    pair.set_tokens(rank, 9);
    for (uint32_t token = 0; token < 9; ++token) pair.set_id(rank, token, 0, (token + first) % 4);
  }
  return pair;
}

// A kernel that receives has another grid than the one that sent: rejected, or without effect on later calls.
TEST(MoeMisuse, PhasesWithDifferentGrids) {
  MoeSetup setup{2, 4, 9, 2, 2, 32, 32};
  setup.has_phases = true;
  Ranks ranks(setup);
  Pairs pairs;
  for (size_t i = 0; i < 3; ++i) pairs.push_back(draw_full(ranks, i + 1, i));
  std::atomic<bool> is_refused = false;
  emulator::World world(1, Ranks::kPatient);
  for (uint32_t rank = 0; rank < 2; ++rank) {
    emulator::Grid* earlier = nullptr;
    for (size_t i = 0; i < 3; ++i)
      for (const uint32_t phase : {device::kMoeSend, device::kMoeReceive})
        earlier = world.add_grid(
            rank, i == 0 && phase == device::kMoeReceive ? 1 : 2, 32,
            [&, rank, i, phase] {
              device::wait_for_earlier_grids();
              if (rank == 1) device::pause(500'000);
              if (ranks.call(rank, pairs[i], false, phase) != SymmStatus::kDone)
                is_refused.store(true, std::memory_order_relaxed);
            },
            1, earlier);
  }
  EXPECT_EQ(world.run(), "");
  if (!is_refused) {
    for (const auto& pair : pairs) EXPECT_EQ(pair.check_dispatch(), "");
  }
}

// A combine with fewer tokens than its dispatch leaves packets in slots of a later combine.
TEST(MoeMisuse, CombineWithFewerTokens) {
  const MoeSetup setup{2, 4, 9, 2, 2, 32, 32};
  Ranks ranks(setup);
  Pairs pairs;
  std::vector<Ranks::Step> steps;
  for (size_t i = 0; i < 4; ++i) {
    pairs.push_back(draw_full(ranks, i + 1));
    steps.push_back({i, false});
  }
  ASSERT_EQ(ranks.run(1, pairs, steps), "");
  for (uint32_t rank = 0; rank < 2; ++rank) pairs[0].set_tokens(rank, 3);
  std::atomic<bool> is_refused = false;
  const auto combine = [&](uint32_t rank, size_t i) {
    if (rank == 1) device::pause(500'000);
    if (ranks.call(rank, pairs[i], true) != SymmStatus::kDone)
      is_refused.store(true, std::memory_order_relaxed);
  };
  ranks.run_late(1, 2, 2, Ranks::kNever_ns, combine, 4);
  if (!is_refused) {
    for (size_t i = 1; i < 4; ++i) EXPECT_EQ(pairs[i].check_combine(), "") << i;
  }
}

// A combine whose handle no dispatch has written ends with an error, and writes outside no slot.
TEST(MoeMisuse, CombineWithoutDispatch) {
  const MoeSetup setup{2, 4, 9, 2, 1, 32, 32};
  Ranks ranks(setup);
  Pairs pairs = {ranks.draw(1, MoeOrder::kRows)};
  ranks.run_late(1, 2, 1, 50'000'000, [&](uint32_t rank, size_t) {
    emulator::require(ranks.call(rank, pairs[0], true) == SymmStatus::kInvalid, "the status");
  });
}

// After a combine that one rank refuses, no rank takes rows of another call for rows of its own. Kernels of a
// graph run one after the other whatever became of the first.
TEST(MoeMisuse, CallsAfterARefusedOne) {
  const MoeSetup setup{2, 4, 9, 2, 2, 32, 32};
  Ranks ranks(setup);
  Pairs pairs;
  for (size_t i = 0; i < 3; ++i) pairs.push_back(draw_full(ranks, i + 1));
  ASSERT_EQ(ranks.run(1, pairs, {{0, false}, {1, false}}), "");  // not of the last pair
  std::array<std::atomic<SymmStatus>, 2> of_first{};             // at rank 1, by block
  const auto combine = [&](uint32_t rank, size_t i) {
    const SymmStatus status = ranks.call(rank, pairs[rank == 0 && i == 0 ? 2 : i], true);
    if (rank == 1 && i == 0) of_first.at(device::block_index()).store(status, std::memory_order_relaxed);
  };
  ranks.run_late(1, 2, 2, 50'000'000, combine, 2);
  EXPECT_TRUE(of_first[0] != SymmStatus::kDone || of_first[1] != SymmStatus::kDone)
      << "a call that another rank refused is done";
}

// One block ends in time and another does not, if a rank arrives just at the deadline: outputs have to say
// that nothing came.
TEST(MoeMisuse, OutputsOfACallThatFailsInOneBlock) {
  if (emulator::kSanitizer)
    GTEST_SKIP() << "fences order the two blocks' stores, which ThreadSanitizer does not see";
  uint32_t spoiled = 0, left = 0;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    const uint32_t late_block = seed % 2;
    for (uint64_t arrival = 49'000'000; arrival <= 51'000'000; arrival += 100'000) {
      const MoeSetup setup{2, 2, 9, 1, 2, 32, 16};
      Ranks ranks(setup);
      Pairs pairs = {ranks.draw(1, MoeOrder::kRows)};
      pairs[0].set_tokens(0, 0);
      pairs[0].set_tokens(1, 1);
      pairs[0].set_id(1, 0, 0, 0);  // one row, of the first block
      emulator::World world(seed, Ranks::kPatient);
      ranks.fleet().context(0).timeout_ns = 50'000'000;
      uint32_t failed = 0;
      int64_t status_word = 0;
      ops::MoeDispatchLaunch launch{};
      launch.workspace = ranks.workspace(0);
      launch.shape = ranks.shape();
      launch.call = pairs[0].dispatch(0);
      launch.status = &status_word;
      world.add_grid(0, 2, 32, [&] { ops::run_moe_dispatch<device::MoeRowBytes, false>(launch); });
      world.add_grid(1, 2, 32, [&] {
        device::pause(static_cast<uint32_t>(device::block_index() != late_block ? arrival : 200'000'000));
        (void)ranks.call(1, pairs[0], false);
      });
      ASSERT_EQ(world.run(), "");
      if (status_word != 0) ++failed;
      if (failed == 0) continue;
      const auto count = pairs[0].handle(0).get<int32_t>(1);
      ++(count == 0 ? spoiled : left);
    }
  }
  EXPECT_EQ(left, 0U) << "counts of rows that are missing; " << spoiled << " calls told it";
}

}  // namespace
}  // namespace verbena::device_test
