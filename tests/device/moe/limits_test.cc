// Dispatch and combine at the limits of their shapes, with masks that look like empty packets, and with a
// rank that is late for a call in two phases.
#include <gtest/gtest.h>

#include "device/emulator/sanitizer.h"
#include "device/moe/calls.h"
#include "device/support/rank_counts.h"

namespace verbena::device_test {
namespace {

using device::Bfloat16;
using device::Half;

TEST(MoeLimits, SixteenRanks) {
  for (const MoeOrder order : {MoeOrder::kRows, MoeOrder::kReduced, MoeOrder::kExact}) {
    EXPECT_EQ(run_orders<Bfloat16>({16, 32, 3, 4, 1, 32, 16}, 1, {order}), "");
    EXPECT_EQ(run_orders<Half>({16, 16, 2, 32, 1, 32, 16}, 2, {order}), "");
  }
  EXPECT_EQ(run_orders<Half>({16, 64, 3, 5, 1, 32, 16, 0, false}, 3, {MoeOrder::kReduced}), "");
}
TEST(MoeLimits, ThirtyTwoRanks) {
  EXPECT_EQ(run_orders<Bfloat16>({32, 64, 2, 4, 1, 32, 16}, 1, {MoeOrder::kRows}), "");
  EXPECT_EQ(run_orders<Half>({32, 32, 3, 32, 1, 32, 16, 0, false}, 2, {MoeOrder::kReduced}), "");
}
// All of a rank's tokens name the same expert of the other rank.
TEST(MoeLimits, MostTokens) {
  if (emulator::kSanitizer) GTEST_SKIP() << "takes minutes";
  MoeSetup setup{2, 2, device::kMoeMaxTokens, 1, 1, 128, 16};
  setup.grouping = MoeGrouping::kExpert;
  MoeRanks<Bfloat16> ranks(setup);
  std::vector<MoePair<Bfloat16>> pairs = {ranks.draw(1, MoeOrder::kReduced)};
  pairs[0].set_tokens(0, setup.max_tokens);
  pairs[0].set_tokens(1, 5);
  for (uint32_t token = 0; token < setup.max_tokens; ++token) pairs[0].set_id(0, token, 0, 1);
  EXPECT_EQ(run_pairs(ranks, 1, pairs), "");
}
TEST(MoeLimits, MostExpertsOnOneRank) {
  EXPECT_EQ(run_orders<Bfloat16>({1, 4096, 5, 32, 2, 64, 16}, 4, {MoeOrder::kExact}), "");
  EXPECT_EQ(run_orders<Bfloat16>({2, 4096, 5, 32, 2, 64, 16}, 5, {MoeOrder::kReduced}), "");
}
// One rank has all tokens, or none has any.
TEST(MoeLimits, RanksWithoutTokens) {
  for (const uint32_t tokens : {0U, 33U}) {
    const MoeSetup setup{3, 6, 33, 2, 2, 64, 32};
    MoeRanks<Bfloat16> ranks(setup);
    std::vector<MoePair<Bfloat16>> pairs;
    for (size_t i = 0; i < 3; ++i) {
      pairs.push_back(ranks.draw(i, MoeOrder::kReduced));
      for (uint32_t rank = 0; rank < 3; ++rank) pairs[i].set_tokens(rank, rank == i ? tokens : 0);
    }
    EXPECT_EQ(run_pairs(ranks, tokens, pairs), "");
  }
}

// The words of a header that an empty packet would have, call after call, so that notes of earlier calls are
// there.
TEST(MoeLimits, MasksThatLookLikeEmptyPackets) {
  constexpr uint32_t kTokens = 128;
  const MoeSetup setup{2, 2, kTokens, 1, 2, 64, 16};
  MoeRanks<Bfloat16> ranks(setup);
  std::vector<MoePair<Bfloat16>> pairs;
  for (uint32_t i = 0; i < 8; ++i) {
    pairs.push_back(ranks.draw(i, MoeOrder::kRows));
    for (uint32_t rank = 0; rank < 2; ++rank) {
      pairs[i].set_tokens(rank, kTokens);
      for (uint32_t token = 0; token < kTokens; ++token) {
        // The first words of both halves: one and the other value that needs the note, or neither.
        const uint32_t change = token / 64 == 0 ? i % 3 : i / 3;
        const uint32_t word = device::Packet::kSentinel ^ change;
        const bool goes = token / 32 % 2 == 0 ? (word >> token % 32 & 1) != 0 : token % 3 == 0;
        pairs[i].set_id(rank, token, 0, goes ? 1 - rank : -1);
      }
    }
  }
  EXPECT_EQ(run_pairs(ranks, 3, pairs), "");
}

// A rank that does not come is named. After a reset the others go on without it; after another reset it is
// there again.
struct Dead {
  uint32_t ranks, rank;
};
TEST(MoeLimits, ADeadRankIsLeftOutOfRanks) {
  std::vector<Dead> all = {{3, 0}, {3, 1}, {3, 2}};
  for (const int32_t ranks : list_rank_counts())
    if (ranks != 3) all.push_back({static_cast<uint32_t>(ranks), static_cast<uint32_t>(ranks * 2 / 3)});
  for (const MoeGrouping grouping : {MoeGrouping::kRank, MoeGrouping::kExpert, MoeGrouping::kRagged}) {
    for (const auto& [count, dead] : all) {
      MoeSetup setup{count, 4 * count, count > 8 ? 3U : 7U, 4, 2, 32, 48, 4};
      setup.grouping = grouping;
      MoeRanks<Bfloat16> ranks(setup);
      uint64_t seed = dead;
      const auto expect_right = [&] {
        EXPECT_EQ(run_orders(ranks, seed, {MoeOrder::kReduced, MoeOrder::kExact, MoeOrder::kRows}), "");
        seed += 3;
      };
      expect_right();
      MoePair<Bfloat16> pair = ranks.draw(++seed, MoeOrder::kReduced);
      emulator::World world(seed, MoeRanks<Bfloat16>::kPatient);
      for (uint32_t rank = 0; rank < setup.ranks; ++rank) {
        if (rank == dead) continue;
        ranks.fleet().context(static_cast<int32_t>(rank)).timeout_ns = 50'000'000;
        world.add_grid(rank, 2, 32, [&ranks, &pair, rank] {
          emulator::require(
              ranks.call(rank, pair, false, ranks.list_phases(false).front()) != SymmStatus::kDone,
              "the call is done");
        });
      }
      EXPECT_EQ(world.run(), "");
      for (uint32_t rank = 0; rank < setup.ranks; ++rank) {
        ranks.fleet().context(static_cast<int32_t>(rank)).timeout_ns = MoeRanks<Bfloat16>::kNever_ns;
        if (rank == dead) continue;
        const uint64_t failure = *ranks.workspace(rank).context.failure;
        EXPECT_EQ(failure >> kSymmFailurePeer & kSymmNobody, dead) << "rank " << rank;
      }
      ranks.reset();
      const uint32_t everyone = (1U << count) - 1;
      ranks.set_living(everyone & ~(1U << dead));
      const std::vector<char> before = ranks.list_packets(dead);
      expect_right();
      EXPECT_TRUE(ranks.list_packets(dead) == before) << "something is sent to a rank that is left out";
      ranks.reset();
      ranks.set_living(everyone);
      expect_right();
    }
  }
}
// A handle of a dispatch with another mask is refused.
TEST(MoeLimits, AHandleOfAnotherMask) {
  const MoeSetup setup{3, 12, 7, 4, 2, 32, 48};
  MoeRanks<Bfloat16> ranks(setup);
  std::vector<MoePair<Bfloat16>> pairs = {ranks.draw(1, MoeOrder::kReduced)};
  ASSERT_EQ(ranks.run(1, pairs, {{0, false}}), "");
  ranks.set_living(3);
  ranks.run_late(1, 2, 1, MoeRanks<Bfloat16>::kNever_ns, [&](uint32_t rank, size_t) {
    emulator::require(ranks.call(rank, pairs[0], true) == SymmStatus::kInvalid, "the status");
  });
}

// A dispatch and the combine of the dispatch before are in flight together: both send before both receive.
TEST(MoeLimits, OneOfEachKindInFlight) {
  for (uint64_t seed = 0; seed < 3; ++seed) {
    const MoeSetup setup{3, 6, 9, 2, 2, 32, 32};
    MoeRanks<Bfloat16> ranks(setup);
    std::vector<MoePair<Bfloat16>> pairs;
    for (size_t i = 0; i < 7; ++i) pairs.push_back(ranks.draw(seed * 10 + i, MoeOrder::kReduced));
    emulator::World world(seed, MoeRanks<Bfloat16>::kPatient);
    for (uint32_t rank = 0; rank < setup.ranks; ++rank) {
      emulator::Grid* earlier = nullptr;
      const auto add = [&](size_t pair, bool is_combine, uint32_t phase) {
        earlier = world.add_grid(
            rank, 2, 32,
            [&ranks, &pairs, rank, pair, is_combine, phase, seed] {
              device::wait_for_earlier_grids();
              if ((seed + pair + rank) % 3 == 0) device::pause(500'000);
              emulator::require_done(ranks.call(rank, pairs[pair], is_combine, phase), "the call");
            },
            1, earlier);
      };
      for (size_t i = 0; i <= pairs.size(); ++i) {
        for (const uint32_t phase : {device::kMoeSend, device::kMoeReceive}) {
          if (i < pairs.size()) add(i, false, phase);
          if (i > 0) add(i - 1, true, phase);
        }
      }
    }
    ASSERT_EQ(world.run(), "");
    EXPECT_EQ(check_pairs(pairs), "");
  }
}

// A rank that has sent nothing is named by the kernel that receives; the kernel that sends does not wait.
TEST(MoeLimits, ALateRankIsNamedInTwoPhases) {
  for (const bool is_in_combine : {false, true}) {
    MoeSetup setup{3, 6, 9, 2, 2, 64, 32};
    setup.has_phases = true;
    MoeRanks<Bfloat16> ranks(setup);
    std::vector<MoePair<Bfloat16>> pairs = {ranks.draw(3, MoeOrder::kReduced)};
    if (is_in_combine) {
      ASSERT_EQ(ranks.run(1, pairs, {{0, false}}), "");
    }
    for (const uint32_t phase : {device::kMoeSend, device::kMoeReceive}) {
      ranks.run_late(phase, 2, 2, 50'000'000, [&](uint32_t rank, size_t) {
        // Blocks that wait for nobody are done in the second kernel too.
        const bool is_done = ranks.call(rank, pairs[0], is_in_combine, phase) == SymmStatus::kDone;
        emulator::require(is_done || phase == device::kMoeReceive, "the kernel that sends is done");
      });
    }
    for (uint32_t rank = 0; rank < 2; ++rank) expect_named(ranks, rank, 2);
  }
}

}  // namespace
}  // namespace verbena::device_test
