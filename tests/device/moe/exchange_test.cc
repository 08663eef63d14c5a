// Dispatch and combine on emulated GPUs: any routing, any number of tokens on each rank, every order of sums,
// call after call, against an oracle; and a rank that does not come.
#include <gtest/gtest.h>

#include "device/emulator/sanitizer.h"
#include "device/moe/calls.h"
#include "device/support/rank_counts.h"

namespace verbena::device_test {
namespace {

using device::Bfloat16;
using device::Half;

constexpr uint64_t kSeeds = emulator::kSanitizer ? 1 : 4;
constexpr MoeOrder kOrders[] = {MoeOrder::kRows, MoeOrder::kReduced, MoeOrder::kExact};

template <typename T>
std::string run_all_orders(const MoeSetup& setup, uint64_t seed) {
  std::vector<MoeOrder> orders(std::begin(kOrders), std::end(kOrders));
  if (!setup.has_exact) orders.pop_back();
  return run_orders<T>(setup, seed, orders);
}

TEST(MoeExchange, AnyRouting) {
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    EXPECT_EQ(run_all_orders<Bfloat16>({2, 8, 31, 2}, seed), "") << seed;
    EXPECT_EQ(run_all_orders<Half>({3, 6, 5, 8, 3, 32, 16}, seed), "") << seed;
    EXPECT_EQ(run_all_orders<Bfloat16>({4, 16, 40, 6, 2, 64, 1040, 36}, seed), "") << seed;
    EXPECT_EQ(run_all_orders<Bfloat16>({1, 4, 7, 3}, seed), "") << seed;
  }
}
// Every grouping, with and without room for exact sums, a cast of each form, phases, and scales in columns:
// each with other shapes and numbers of ranks.
TEST(MoeExchange, EveryCallOfRanks) {
  for (const int32_t count : list_rank_counts()) {
    const auto ranks = static_cast<uint32_t>(count);
    uint64_t seed = ranks;
    for (const MoeGrouping grouping : {MoeGrouping::kRank, MoeGrouping::kExpert, MoeGrouping::kRagged}) {
      for (const MoeCast cast : {MoeCast::kNone, MoeCast::kBlocks, MoeCast::kPowers, MoeCast::kExponents}) {
        for (const bool has_phases : {false, true}) {
          ++seed;
          // Half of them, unless all numbers of ranks are asked for.
          const bool is_left_out = Random(seed * 31 + ranks).between(0, emulator::kSanitizer ? 4 : 1) != 0;
          if (is_left_out && !takes_all_rank_counts()) continue;
          MoeSetup setup{ranks, ranks * static_cast<uint32_t>(1 + seed % 3), 5, 4, 1 + ranks % 2,
                         32,    cast == MoeCast::kNone ? 48U : 288U};
          setup.scale_bytes = cast == MoeCast::kNone && seed % 2 == 0 ? 12 : 0;
          setup.has_exact = seed % 4 < 2;
          setup.cast = cast;
          setup.has_phases = has_phases;
          setup.grouping = grouping;
          setup.alignment = static_cast<uint32_t>(1 + seed % 3);
          setup.has_columns = cast >= MoeCast::kPowers && seed % 2 == 0;
          setup.has_ids_first = has_phases && seed % 4 > 1;
          const std::string wrong =
              seed % 2 == 0 ? run_all_orders<Bfloat16>(setup, seed) : run_all_orders<Half>(setup, seed);
          EXPECT_EQ(wrong, "") << ranks << " ranks, grouping " << static_cast<int>(grouping) << ", cast "
                               << static_cast<int>(cast) << ", phases " << has_phases;
        }
      }
    }
  }
}
// A combined row of each rank that has experts of a token, and no more: ranks are fewer than top-k, or more.
TEST(MoeExchange, RoomForReducedRowsAlone) {
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    EXPECT_EQ(run_all_orders<Bfloat16>({2, 8, 13, 6, 2, 64, 48, 0, false}, seed), "") << seed;
    EXPECT_EQ(run_all_orders<Half>({5, 10, 7, 3, 1, 32, 48, 0, false}, seed), "") << seed;
  }
}
// Rows that are cast to e4m3 on the way: any numbers, NaN and infinities among them, the last block whole or
// not.
TEST(MoeExchange, RowsAreCast) {
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    for (const MoeCast cast : {MoeCast::kBlocks, MoeCast::kPowers}) {
      EXPECT_EQ(run_all_orders<Bfloat16>({2, 8, 9, 2, 2, 64, 512, 0, false, cast}, seed), "") << seed;
      EXPECT_EQ(run_all_orders<Half>({3, 6, 7, 3, 2, 64, 1824, 0, false, cast}, seed), "") << seed;
    }
  }
}
// Each call is a kernel that sends and a kernel that receives.
TEST(MoeExchange, CallsInTwoPhases) {
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    EXPECT_EQ(run_all_orders<Bfloat16>({2, 8, 31, 2, 2, 64, 64, 4, true, MoeCast::kNone, true}, seed), "")
        << seed;
    EXPECT_EQ(run_all_orders<Half>({4, 8, 9, 6, 2, 32, 256, 0, true, MoeCast::kBlocks, true}, seed), "")
        << seed;
  }
}
// Rows grouped by expert, each group as long as can be, or one behind the other at a multiple of rows.
TEST(MoeExchange, RowsGroupedByExpert) {
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    for (const MoeGrouping grouping : {MoeGrouping::kExpert, MoeGrouping::kRagged}) {
      MoeSetup setup{2, 8, 31, 2, 2, 64, 64, 0, false};
      setup.grouping = grouping;
      EXPECT_EQ(run_all_orders<Bfloat16>(setup, seed), "") << seed;
      if (!emulator::kSanitizer) {
        setup.threads = 288;
        EXPECT_EQ(run_all_orders<Bfloat16>(setup, seed), "") << seed;
      }
      setup = {3, 6, 5, 8, 3, 32, 16, 7};
      setup.grouping = grouping;
      setup.alignment = 4;
      EXPECT_EQ(run_all_orders<Half>(setup, seed), "") << seed;
      setup = {4, 160, 13, 6, 2, 64, 528, 36, true, MoeCast::kNone, true};
      setup.grouping = grouping;
      setup.alignment = 128;
      EXPECT_EQ(run_all_orders<Bfloat16>(setup, seed), "") << seed;
      setup.has_ids_first = true;
      EXPECT_EQ(run_all_orders<Bfloat16>(setup, seed), "") << seed;
      setup = {2, 4, 40, 31, 2, 64, 32, 0, false};  // several tiles of a block
      setup.grouping = grouping;
      EXPECT_EQ(run_all_orders<Bfloat16>(setup, seed), "") << seed;
    }
  }
}
// Scales of a cast in rows and in columns, as floats and as exponents, with and without groups.
TEST(MoeExchange, FormsOfScales) {
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    for (const MoeGrouping grouping : {MoeGrouping::kRank, MoeGrouping::kExpert, MoeGrouping::kRagged}) {
      for (const bool has_columns : {false, true}) {
        for (const MoeCast cast : {MoeCast::kPowers, MoeCast::kExponents}) {
          MoeSetup setup{2, 8, 9, 2, 2, 64, 1824, 0, false, cast};
          setup.grouping = grouping;
          setup.has_columns = has_columns;
          setup.alignment = 2;
          EXPECT_EQ(run_all_orders<Bfloat16>(setup, seed), "") << seed;
        }
      }
    }
  }
}
// More tokens than a header of one packet tells, and as many experts of a token as there are lanes.
TEST(MoeExchange, LongMasks) {
  EXPECT_EQ(run_all_orders<Bfloat16>({2, 4, 131, 1, 2, 96, 16}, 1), "");
  EXPECT_EQ(run_all_orders<Half>({2, 64, 3, 32, 1, 64, 32, 7}, 2), "");
  const uint32_t many = emulator::kSanitizer ? 300 : 1100;
  EXPECT_EQ(run_all_orders<Bfloat16>({2, 4, many, 1, 2, 64, 16}, 3), "");
}

// Calls in any order, each kernel as long as its rank takes: copies of the workspace are used again and
// again, several handles are alive, and dispatches follow each other without a combine.
TEST(MoeExchange, CallAfterCallOfRanks) {
  const std::vector<int32_t> counts = list_rank_counts({3});
  for (uint64_t turn = 0; turn < counts.size() - 1 + kSeeds; ++turn) {
    // Three ranks with each seed, the drawn ones with one.
    const uint64_t seed = turn < kSeeds ? turn : turn - kSeeds;
    const auto count = static_cast<uint32_t>(turn < kSeeds ? 3 : counts[turn - kSeeds + 1]);
    const MoeSetup setup{count, 2 * count, 5, 2, 2, 32, 32, 4, true, MoeCast::kNone, seed % 2 == 1};
    MoeRanks<Bfloat16> ranks(setup);
    for (uint64_t round = 0; round < (count > 3 ? 1 : emulator::kSanitizer ? 2 : 12); ++round) {
      const std::string wrong =
          run_in_any_order(ranks, seed, round, {std::begin(kOrders), std::end(kOrders)});
      ASSERT_EQ(wrong, "") << count << " ranks, seed " << seed << " round " << round;
    }
  }
}

TEST(MoeExchange, SameBitsInEveryRun) {
  expect_same_bits_in_every_run<Half>({4, 8, 9, 3, 2, 32, 48});
}

TEST(MoeExchange, EntriesThatNoCallNeedsAreRenewed) {
  for (const MoeGrouping grouping : {MoeGrouping::kRank, MoeGrouping::kExpert}) {
    MoeSetup setup{2, 14, 3, 3, 2, 32, 16, 0, false};
    setup.grouping = grouping;
    expect_entries_are_renewed<Bfloat16>(setup);
  }
}

// A rank that does not come, to a dispatch or to a combine, is named by all others, and no later call waits.
TEST(MoeExchange, ALateRankIsNamed) {
  for (const bool is_in_combine : {false, true}) {
    for (uint64_t seed = 0; seed < kSeeds; ++seed) {
      MoeRanks<Bfloat16> ranks({3, 6, 9, 2, 2, 64, 32});
      std::vector<MoePair<Bfloat16>> pairs = {ranks.draw(seed, MoeOrder::kReduced)};
      if (is_in_combine) {
        ASSERT_EQ(ranks.run(seed, pairs, {{0, false}}), "");
      }
      std::vector<char> after_first;
      for (int turn = 0; turn < 2; ++turn) {
        ranks.run_late(seed, 2, 2, 50'000'000, [&](uint32_t rank, size_t) {
          emulator::require(ranks.call(rank, pairs[0], is_in_combine) != SymmStatus::kDone ||
                                (is_in_combine && device::block_index() != 1),  // the last has the headers
                            "the call is done");
        });
        // Nothing is sent once a call has failed.
        const std::vector<char> packets = ranks.list_packets(2);
        if (turn == 0) after_first = packets;
        EXPECT_TRUE(packets == after_first) << seed;
      }
      for (uint32_t rank = 0; rank < 2; ++rank) expect_named(ranks, rank, 2);
    }
  }
}

}  // namespace
}  // namespace verbena::device_test
