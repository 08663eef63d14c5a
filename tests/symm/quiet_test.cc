// What kernels have asked NICs for when they end, and what is freed behind them: windows, teams, contexts.

#include "symm/support/asker.h"
#include "symm/support/contexts.h"

namespace verbena::symm {
namespace {

using base::SymmPath;

constexpr uint64_t kPutBytes = 64 << 10;
constexpr uint64_t kPuts = 300;  // some milliseconds of softverbs' time

void put_many(Asker& asker, const ContextWindow& window, uint32_t peer) {
  ASSERT_LE(kPuts, asker.depth());
  for (uint64_t i = 0; i < kPuts; ++i) asker.put(0, peer, window.address + i % 16 * kPutBytes, kPutBytes);
}

TEST(QuietTest, WaitsForWhatWasAskedFor) {
  run_contexts(2, make_settings(SymmPath::kRdma), [](Context& context) {
    auto window = context.allocate_window(16 * kPutBytes);
    ASSERT_TRUE(window);
    Asker asker(context.world().context());
    put_many(asker, **window, 1 - context.rank());
    EXPECT_TRUE(context.quiet());
    EXPECT_EQ(asker.completed(0), kPuts);
    EXPECT_TRUE(context.quiet()) << "nothing to wait for";
    ASSERT_TRUE(context.barrier());
  });
}

TEST(QuietTest, WhereLoadsAndStoresReachThereIsNothingToWaitFor) {
  run_contexts(2, make_settings(), [](Context& context) { EXPECT_TRUE(context.quiet()); });
}

TEST(QuietTest, AWindowIsFreedBehindItsPuts) {
  run_contexts(2, make_settings(SymmPath::kRdma), [](Context& context) {
    auto window = context.allocate_window(16 * kPutBytes);
    ASSERT_TRUE(window);
    Asker asker(context.world().context());
    put_many(asker, **window, 1 - context.rank());
    EXPECT_TRUE(context.free_window(**window));
    EXPECT_EQ(asker.completed(0), kPuts);
    ASSERT_TRUE(context.barrier());
    EXPECT_EQ(context.state(), SymmAbort::kNone) << context.error();
    auto other = context.allocate_window(4096);
    EXPECT_TRUE(other) << "and the context goes on";
  });
}

TEST(QuietTest, AContextIsLeftBehindItsPuts) {
  run_ranks(2, [&](bootstrap::Bootstrap joined, uint32_t rank) {
    auto context = Context::create(std::move(joined), make_settings(SymmPath::kRdma));
    ASSERT_TRUE(context);
    auto window = (*context)->allocate_window(16 * kPutBytes);
    ASSERT_TRUE(window);
    Asker asker((*context)->world().context());
    if (rank == 0) put_many(asker, **window, 1);
    EXPECT_TRUE((*context)->leave());
    EXPECT_EQ(asker.completed(0), asker.asked(0));
    EXPECT_EQ((*context)->error(), "");
  });
}

// A signal of the old team's, behind a long way of puts.
TEST(QuietTest, ANewTeamsWordsGetNoSignalOfAnOldOnes) {
  run_contexts(2, make_settings(SymmPath::kRdma), [](Context& context) {
    auto window = context.allocate_window(16 * kPutBytes);
    ASSERT_TRUE(window);
    Asker asker(context.world().context());
    const auto old = context.split_team(&context.world(), 0, 0);
    ASSERT_TRUE(old);
    uint64_t* const word = (*old)->context().remote_signals + 7;
    put_many(asker, **window, 1 - context.rank());
    asker.add(0, 1 - context.rank(), word, 5);
    context.free_team(**old);
    const auto made = context.split_team(&context.world(), 0, 0);
    ASSERT_TRUE(made);
    ASSERT_EQ((*made)->context().remote_signals + 7, word) << "the same words";
    EXPECT_TRUE(context.quiet());
    ASSERT_TRUE(context.barrier());
    EXPECT_EQ(__atomic_load_n(word, __ATOMIC_ACQUIRE), 0U);
    ASSERT_TRUE(context.barrier());
  });
}

// A context that has failed waits for nothing, and its parts can be freed.
TEST(QuietTest, AFailedContextIsNotWaitedFor) {
  run_contexts(2, make_settings(SymmPath::kRdma), [](Context& context) {
    auto window = context.allocate_window(4096);
    ASSERT_TRUE(window);
    Asker asker(context.world().context());
    if (context.rank() == 0) {
      asker.put(0, 1, (*window)->address - 1, 1);  // another window's last byte
      asker.put(0, 9, (*window)->address, 1);      // no such rank
      EXPECT_FALSE(context.quiet());
      EXPECT_EQ(context.state(), SymmAbort::kRefused);
    }
    EXPECT_TRUE(context.free_window(**window));
  });
}

}  // namespace
}  // namespace verbena::symm
