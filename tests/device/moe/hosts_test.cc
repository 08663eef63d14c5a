// Dispatch and combine between hosts on emulated GPUs and NICs: any routing against the oracle, with NICs
// that take their time and carry out puts twice; bytes between hosts; a rank that does not come.
#include <gtest/gtest.h>

#include <atomic>

#include "device/emulator/sanitizer.h"
#include "device/moe/calls.h"

namespace verbena::device_test {
namespace {

using device::Bfloat16;
using device::Half;

constexpr uint64_t kSeeds = emulator::kSanitizer ? 1 : 2;
constexpr uint32_t kMostHosts = emulator::kSanitizer ? 2 : 4;  // of tests with many threads
// Time runs fast on a machine that stands still: minutes pass between a thread's looks at the clock.
constexpr uint64_t kTimeout_ns = 40'000'000'000'000;

MoeSetup make_setup(uint32_t hosts, uint32_t of_host, uint32_t local_experts, uint32_t max_tokens,
                    uint32_t top_k) {
  MoeSetup setup{hosts * of_host, hosts * of_host * local_experts, max_tokens, top_k};
  setup.hosts = hosts;
  setup.has_exact = false;
  return setup;
}

template <typename T>
std::string run_both_orders(const MoeSetup& setup, uint64_t seed) {
  return run_orders<T>(setup, seed, {MoeOrder::kRows, MoeOrder::kReduced, MoeOrder::kReduced});
}

TEST(MoeHosts, AnyRouting) {
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    EXPECT_EQ(run_both_orders<Bfloat16>(make_setup(2, 1, 4, 9, 2), seed), "") << seed;
    EXPECT_EQ(run_both_orders<Half>(make_setup(2, 2, 2, 9, 3), seed), "") << seed;
    MoeSetup setup = make_setup(2, 2, 3, 40, 6);
    setup.row_bytes = 1040;
    setup.scale_bytes = 36;
    setup.chunk_bits = 5;
    EXPECT_EQ(run_both_orders<Bfloat16>(setup, seed), "") << seed;
    setup = make_setup(3, 2, 2, 7, 4);
    setup.are_mixed = true;
    setup.chunk_bits = 0;
    EXPECT_EQ(run_both_orders<Half>(setup, seed), "") << seed;
  }
}
// Fewer and more ranks of a host than experts of a token.
TEST(MoeHosts, FourHosts) {
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    for (const uint32_t top_k : {1U, 2U, 8U}) {
      MoeSetup setup = make_setup(4, 2, 2, 6, top_k);
      setup.blocks = 1;
      setup.threads = 32;
      EXPECT_EQ(run_both_orders<Bfloat16>(setup, seed), "") << seed;
    }
    MoeSetup setup = make_setup(4, 3, 2, 5, 2);
    setup.blocks = 1;
    setup.threads = 32;
    setup.are_mixed = true;
    EXPECT_EQ(run_both_orders<Bfloat16>(setup, seed), "") << seed;
  }
}
TEST(MoeHosts, EightRanksOfAHost) {
  for (uint32_t hosts = 2; hosts <= kMostHosts; hosts += 2) {
    MoeSetup setup = make_setup(hosts, 8, 1, 3, 6);
    setup.blocks = 1;
    setup.threads = 32;
    setup.row_bytes = 32;
    EXPECT_EQ(run_both_orders<Bfloat16>(setup, hosts), "") << hosts;
  }
}
TEST(MoeHosts, RowsAreCast) {
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    for (const MoeCast cast : {MoeCast::kBlocks, MoeCast::kExponents}) {
      MoeSetup setup = make_setup(2, 2, 2, 9, 3);
      setup.cast = cast;
      setup.row_bytes = 1824;
      EXPECT_EQ(run_both_orders<Bfloat16>(setup, seed), "") << seed;
    }
  }
}
// Groups by expert, in one kernel, in two, and with the ids of rows before the rows.
TEST(MoeHosts, RowsGroupedByExpert) {
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    for (const MoeGrouping grouping : {MoeGrouping::kExpert, MoeGrouping::kRagged}) {
      MoeSetup setup = make_setup(2, 2, 5, 19, 4);
      setup.grouping = grouping;
      setup.alignment = 4;
      EXPECT_EQ(run_both_orders<Bfloat16>(setup, seed), "") << seed;
      if (emulator::kSanitizer && grouping == MoeGrouping::kExpert) continue;
      setup.has_phases = true;
      setup.scale_bytes = 20;
      EXPECT_EQ(run_both_orders<Half>(setup, seed), "") << seed;
      setup.has_ids_first = true;
      EXPECT_EQ(run_both_orders<Half>(setup, seed), "") << seed;
      setup = make_setup(3, 1, 2, 40, 31);  // several tiles of a block
      setup.grouping = grouping;
      setup.chunk_bits = 4;
      EXPECT_EQ(run_both_orders<Bfloat16>(setup, seed), "") << seed;
    }
  }
}
TEST(MoeHosts, CallsInTwoPhases) {
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    MoeSetup setup = make_setup(2, 2, 2, 31, 3);
    setup.has_phases = true;
    EXPECT_EQ(run_both_orders<Bfloat16>(setup, seed), "") << seed;
  }
}

// Calls in any order: chunks and packets are used again and again, and several handles are alive.
TEST(MoeHosts, CallAfterCall) {
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    MoeSetup setup = make_setup(2, 2, 2, 5, 2);
    setup.threads = 32;
    setup.row_bytes = 32;
    setup.chunk_bits = 1;
    setup.has_phases = seed % 2 == 1;
    MoeRanks<Bfloat16> ranks(setup);
    for (uint64_t round = 0; round < (emulator::kSanitizer ? 2 : 8); ++round) {
      const std::string wrong = run_in_any_order(ranks, seed, round, {MoeOrder::kRows, MoeOrder::kReduced});
      ASSERT_EQ(wrong, "") << seed << " round " << round;
    }
  }
}

// No rank, or one rank alone, has tokens; a token goes to one rank, or to none.
TEST(MoeHosts, RanksWithoutTokens) {
  for (const uint32_t tokens : {0U, 33U}) {
    MoeRanks<Bfloat16> ranks(make_setup(2, 2, 1, 33, 2));
    std::vector<MoePair<Bfloat16>> pairs;
    for (size_t i = 0; i < 4; ++i) {
      pairs.push_back(ranks.draw(i, MoeOrder::kReduced));
      for (uint32_t rank = 0; rank < 4; ++rank) pairs[i].set_tokens(rank, rank == i ? tokens : 0);
      for (uint32_t token = 0; token < tokens; ++token) {
        pairs[i].set_id(static_cast<uint32_t>(i), token, 0, token % 6 - 1);
        pairs[i].set_id(static_cast<uint32_t>(i), token, 1, -1);
      }
    }
    EXPECT_EQ(run_pairs(ranks, tokens, pairs), "");
  }
}

TEST(MoeHosts, SameBitsInEveryRun) {
  expect_same_bits_in_every_run<Half>(make_setup(2, 3, 2, 9, 4));
}

// As within one host: a relay renews entries in place of the source rank.
TEST(MoeHosts, EntriesThatNoCallNeedsAreRenewed) {
  for (const MoeGrouping grouping : {MoeGrouping::kRank, MoeGrouping::kExpert}) {
    MoeSetup setup = make_setup(2, 2, 4, 3, 3);
    setup.grouping = grouping;
    setup.threads = 32;
    setup.row_bytes = 16;
    expect_entries_are_renewed<Bfloat16>(setup);
  }
}

// A row goes once to each host that has one of its experts, and one sum comes back.
TEST(MoeHosts, BytesBetweenHosts) {
  for (uint32_t hosts = 2; hosts <= kMostHosts; hosts += 2) {
    MoeSetup setup = make_setup(hosts, 2, 4, 32, 8);
    setup.row_bytes = 1024;
    setup.scale_bytes = 32;
    setup.chunk_bits = 3;
    MoeRanks<Bfloat16> ranks(setup);
    std::vector<MoePair<Bfloat16>> pairs = {ranks.draw(1, MoeOrder::kReduced)};
    for (uint32_t rank = 0; rank < setup.ranks; ++rank) pairs[0].set_tokens(rank, setup.max_tokens);
    const uint64_t rows = pairs[0].count_rows_between_hosts();
    EXPECT_GT(rows, uint64_t{setup.ranks} * setup.max_tokens / 2);
    ASSERT_EQ(ranks.run(1, pairs, {{0, false}}), "");
    const uint64_t dispatched = ranks.hosts().wire_bytes();
    // An id and a weight for each of top_k.
    const uint64_t row = setup.row_bytes + setup.scale_bytes + 8 * setup.top_k;
    EXPECT_GE(dispatched, rows * row);
    EXPECT_LE(static_cast<double>(dispatched), 1.05 * static_cast<double>(rows * row)) << hosts;
    ASSERT_EQ(ranks.run(2, pairs, {{0, true}}), "");
    const uint64_t combined = ranks.hosts().wire_bytes() - dispatched;
    EXPECT_GE(combined, rows * setup.row_bytes);
    EXPECT_LE(static_cast<double>(combined), 1.05 * static_cast<double>(rows * setup.row_bytes)) << hosts;
    EXPECT_EQ(pairs[0].check_dispatch(), "");
    EXPECT_EQ(pairs[0].check_combine(), "");
  }
}

// A rank that does not come is named by all others, whether it is a counterpart, its relay or neither.
TEST(MoeHosts, ALateRankIsNamed) {
  for (const bool is_in_combine : {false, true}) {
    for (uint32_t late = 0; late < 4; ++late) {
      for (uint64_t seed = 0; seed < kSeeds; ++seed) {
        MoeSetup setup = make_setup(2, 2, 2, 9, 3);
        setup.blocks = 1;
        setup.threads = 32;
        MoeRanks<Bfloat16> ranks(setup);
        std::vector<MoePair<Bfloat16>> pairs = {ranks.draw(seed, MoeOrder::kReduced)};
        if (is_in_combine) {
          ASSERT_EQ(ranks.run(seed, pairs, {{0, false}}), "");
        }
        emulator::World world(seed, MoeRanks<Bfloat16>::kPatient);
        std::atomic<uint32_t> failed{0};
        for (uint32_t rank = 0; rank < 4; ++rank) {
          if (rank == late) continue;
          ranks.fleet().context(static_cast<int32_t>(rank)).timeout_ns = kTimeout_ns;
          world.add_grid(rank, 1, 32, [&, rank] {
            if (ranks.call(rank, pairs[0], is_in_combine) != SymmStatus::kDone) failed.fetch_or(1U << rank);
            ranks.end_block();
          });
        }
        ranks.hosts().serve(world, seed, 3);
        EXPECT_EQ(world.run(), "") << seed;
        for (uint32_t rank = 0; rank < 4; ++rank) {
          // A combine needs no row of that rank.
          const bool needs_nothing = is_in_combine && rank == 3 - late;
          const bool has_failed = (failed.load() >> rank & 1) != 0;
          if (rank == late || (needs_nothing && !has_failed)) continue;
          EXPECT_TRUE(has_failed) << "rank " << rank << ", seed " << seed;
          SCOPED_TRACE("seed " + std::to_string(seed) + (is_in_combine ? ", combine" : ", dispatch"));
          expect_named(ranks, rank, late);
        }
      }
    }
  }
}

// Without a host, or without the ranks of one number on all hosts, the others go on after a reset.
TEST(MoeHosts, RanksAreLeftOut) {
  for (const uint32_t living : {0b000111U, 0b110110U}) {
    MoeSetup setup = make_setup(2, 3, 2, 7, 4);
    setup.grouping = living == 0b000111U ? MoeGrouping::kRank : MoeGrouping::kExpert;
    MoeRanks<Bfloat16> ranks(setup);
    uint64_t seed = living;
    for (const uint32_t mask : {63U, living, 63U}) {
      ranks.reset();
      ranks.set_living(mask);
      EXPECT_EQ(run_orders(ranks, seed, {MoeOrder::kReduced, MoeOrder::kRows}), "");
      seed += 2;
    }
  }
}

}  // namespace
}  // namespace verbena::device_test
