// Dispatches and combines of exchanges in windows, on emulated GPUs: any routing on any number of ranks, call
// after call, and with a rank that is late or left out. Kernels before and after the
// calls use the memory that other ranks access (MoePair::see_received()).
#include <gtest/gtest.h>

#include "device/emulator/sanitizer.h"
#include "device/moe/calls.h"
#include "device/support/rank_counts.h"

namespace verbena::device_test {
namespace {

using device::Bfloat16;
using device::Half;

constexpr uint64_t kSeeds = emulator::kSanitizer ? 1 : 4;

MoeSetup make_setup(uint32_t ranks, uint32_t max_tokens, uint32_t row_bytes, uint32_t scale_bytes = 0,
                    MoeCast cast = MoeCast::kNone) {
  MoeSetup setup{ranks, 2 * ranks, max_tokens, 3, 2, 64, row_bytes, scale_bytes, false, cast};
  setup.in_windows = true;
  return setup;
}

// Returns a pair, which is dispatched if its combine comes next.
std::vector<MoePair<Bfloat16>> draw_pairs(MoeRanks<Bfloat16>& ranks, bool is_in_combine) {
  std::vector<MoePair<Bfloat16>> pairs;
  pairs.push_back(ranks.draw(1, MoeOrder::kRows));
  if (is_in_combine) {
    EXPECT_EQ(ranks.run(1, pairs, {{0, false}}), "");
  }
  return pairs;
}

TEST(MoeWindows, AnyRoutingOfRanks) {
  for (const int32_t count : list_rank_counts({1, 2, 4})) {
    const auto ranks = static_cast<uint32_t>(count);
    for (uint64_t seed = 0; seed < (count > 4 ? 1 : kSeeds); ++seed) {
      const auto run = [&](const MoeSetup& setup) {
        EXPECT_EQ(seed % 2 == 0 ? run_orders<Bfloat16>(setup, seed, {MoeOrder::kRows})
                                : run_orders<Half>(setup, seed, {MoeOrder::kRows}),
                  "")
            << count << " ranks, seed " << seed;
      };
      run(make_setup(ranks, 37, 208, 12));
      run(make_setup(ranks, 5, 4176));  // more than a thread loads at a time
      run(make_setup(ranks, 5, 32, 604));
      MoeSetup many_ids = make_setup(ranks, 7, 16);
      many_ids.top_k = 32;
      run(many_ids);
    }
  }
}
TEST(MoeWindows, RowsAreCast) {
  for (const MoeCast cast : {MoeCast::kBlocks, MoeCast::kPowers, MoeCast::kExponents}) {
    for (const bool has_columns : {false, true}) {
      MoeSetup setup = make_setup(3, 9, 1824, 0, cast);
      setup.has_columns = has_columns;
      EXPECT_EQ(run_orders<Bfloat16>(setup, 5, {MoeOrder::kRows, MoeOrder::kRows}), "");
    }
  }
}
TEST(MoeWindows, LongMasks) {
  EXPECT_EQ(run_orders<Bfloat16>(make_setup(2, emulator::kSanitizer ? 300 : 1500, 16), 3, {MoeOrder::kRows}),
            "");
}
TEST(MoeWindows, CallAfterCall) {
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    MoeSetup setup = make_setup(3, 9, 64, 4);
    setup.threads = 32;  // a sanitizer has room for a few thousand threads
    MoeRanks<Bfloat16> ranks(setup);
    ASSERT_EQ(run_in_any_order(ranks, seed, 0, {MoeOrder::kRows}), "") << seed;
  }
}
TEST(MoeWindows, TheSameMemoryAgainAndAgain) {
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    MoeRanks<Half> ranks(make_setup(3, 17, 96, 8));
    std::vector<MoePair<Half>> pairs;
    for (uint64_t i = 0; i < 2; ++i) pairs.push_back(ranks.draw(seed + i, MoeOrder::kRows));
    ASSERT_EQ(ranks.run(seed, pairs,
                        {{0, false}, {1, false}, {0, false}, {0, true}, {1, true}, {1, false}, {0, true}}),
              "");
    EXPECT_EQ(check_pairs(pairs), "") << seed;
  }
}
TEST(MoeWindows, SameBitsInEveryRun) {
  expect_same_bits_in_every_run<Half>(make_setup(4, 9, 48), MoeOrder::kRows);
}

// A rank that does not come, to a dispatch or to a combine, is named by all others. After a reset, the others
// go on without it.
TEST(MoeWindows, ALateRankIsNamedAndLeftOut) {
  for (const bool is_in_combine : {false, true}) {
    const uint32_t late = is_in_combine ? 2 : 1;
    MoeRanks<Bfloat16> ranks(make_setup(3, 9, 32));
    std::vector<MoePair<Bfloat16>> pairs = draw_pairs(ranks, is_in_combine);
    ranks.run_late(1, 3, 2, 50'000'000, [&](uint32_t rank, size_t) {
      emulator::require(rank == late || ranks.call(rank, pairs[0], is_in_combine) != SymmStatus::kDone,
                        "the call is done");
    });
    for (uint32_t rank = 0; rank < 3; ++rank) {
      if (rank != late) expect_named(ranks, rank, late);
      ranks.fleet().context(static_cast<int32_t>(rank)).timeout_ns = MoeRanks<Bfloat16>::kNever_ns;
    }
    ranks.reset();
    ranks.set_living(7 & ~(1U << late));
    pairs.clear();
    for (uint64_t i = 0; i < 2; ++i) pairs.push_back(ranks.draw(i, MoeOrder::kRows));
    const std::vector<char> before = ranks.list_heap(late);
    EXPECT_EQ(run_pairs(ranks, 2, pairs), "");
    EXPECT_TRUE(ranks.list_heap(late) == before) << "something is sent to a rank that is left out";
  }
}
// A block that does not come, or that ends early, keeps all ranks from ending the call.
TEST(MoeWindows, ALateBlockIsNamed) {
  for (const bool is_in_combine : {false, true}) {
    MoeRanks<Bfloat16> ranks(make_setup(2, 9, 32));
    std::vector<MoePair<Bfloat16>> pairs = draw_pairs(ranks, is_in_combine);
    ranks.run_late(1, 2, 2, 50'000'000, [&](uint32_t rank, size_t) {
      if (rank == 1 && device::block_index() == 0) return;
      const SymmStatus status = ranks.call(rank, pairs[0], is_in_combine);
      emulator::require(rank == 1 || device::block_index() == 0 || status != SymmStatus::kDone,
                        "the call is done");
    });
    expect_named(ranks, 0, 1);
  }
}
// Rows of another length on each rank would be stored beside the output.
TEST(MoeWindows, AnotherFormatIsRefused) {
  MoeRanks<Bfloat16> ranks(make_setup(2, 9, 64));
  std::vector<MoePair<Bfloat16>> pairs = draw_pairs(ranks, false);
  ranks.run_late(1, 2, 1, MoeRanks<Bfloat16>::kNever_ns, [&](uint32_t rank, size_t) {
    const SymmStatus status = ranks.call_format(rank, pairs[0], rank == 0 ? 64 : 48);
    emulator::require(status != SymmStatus::kDone, "the call is done");
  });
}
// A rank whose rows are not in a window refuses the call, on all ranks.
TEST(MoeWindows, MemoryOutsideWindowsIsRefused) {
  for (const bool is_in_combine : {false, true}) {
    MoeRanks<Bfloat16> ranks(make_setup(2, 9, 32));
    std::vector<MoePair<Bfloat16>> pairs = draw_pairs(ranks, is_in_combine);
    std::vector<MoePair<Bfloat16>> copies = pairs;  // in memory of their own
    ranks.run_late(1, 2, 2, MoeRanks<Bfloat16>::kNever_ns, [&](uint32_t rank, size_t) {
      const SymmStatus status = ranks.call(rank, rank == 0 ? pairs[0] : copies[0], is_in_combine);
      const bool refuses = rank == 1 && device::block_index() == 1;
      emulator::require(refuses ? status == SymmStatus::kInvalid : status != SymmStatus::kDone, "the status");
    });
  }
}

}  // namespace
}  // namespace verbena::device_test
