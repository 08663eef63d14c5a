// Windows: the same place at every rank, found by address, gone when they are freed.

#include "symm/support/contexts.h"

namespace verbena::symm {
namespace {

using base::Status;
using base::SymmPath;

class WindowTest : public testing::TestWithParam<SymmPath> {};
INSTANTIATE_TEST_SUITE_P(Paths, WindowTest, testing::Values(SymmPath::kAuto, SymmPath::kRdma), name_path);

TEST_P(WindowTest, LiesAtOnePlaceOfEveryHeap) {
  run_contexts(3, make_settings(GetParam()), [&](Context& context) {
    const auto first = context.allocate_window(100), second = context.allocate_window(5000);
    ASSERT_TRUE(first && second);
    const SymmContext& kernel = context.world().context();
    const auto offset = reinterpret_cast<uint64_t>((*second)->address) - kernel.heap_begin;
    EXPECT_EQ(offset, (*second)->place.heap_offset);
    EXPECT_NE((*first)->place.heap_offset, (*second)->place.heap_offset);
    for (size_t i = 0; i < 5000; ++i) ASSERT_EQ((*second)->address[i], std::byte{0});
    ASSERT_TRUE(context.barrier());
    EXPECT_EQ(context.find_peer(**second, context.rank()), (*second)->address);
    EXPECT_EQ(context.find_peer(**second, 3), nullptr);
    const uint32_t peer = (context.rank() + 1) % 3;
    std::byte* const there = context.find_peer(**second, peer);
    ASSERT_EQ(there == nullptr, GetParam() == SymmPath::kRdma);
    if (there != nullptr) there[4999] = std::byte(context.rank() + 1);
    ASSERT_TRUE(context.barrier());
    const uint32_t before = (context.rank() + 2) % 3;
    EXPECT_EQ((*second)->address[4999], there == nullptr ? std::byte{0} : std::byte(before + 1));
  });
}

TEST_P(WindowTest, IsFoundByItsAddresses) {
  run_contexts(2, make_settings(GetParam()), [](Context& context) {
    auto window = context.allocate_window(64);
    ASSERT_TRUE(window);
    EXPECT_EQ(context.find_window((*window)->address), *window);
    EXPECT_EQ(context.find_window((*window)->address + 63), *window);
    EXPECT_EQ(context.find_window((*window)->address + 64), nullptr);
    EXPECT_EQ(context.find_window(&context), nullptr);
    std::byte* const was = (*window)->address;
    ASSERT_TRUE(context.free_window(**window));
    EXPECT_EQ(context.find_window(was), nullptr);
  });
}

TEST_P(WindowTest, ItsPlaceIsUsedAgainAndClean) {
  run_contexts(2, make_settings(GetParam()), [](Context& context) {
    uint64_t offset = 0;
    for (int round = 0; round < 5; ++round) {
      auto window = context.allocate_window(1 << 20);
      ASSERT_TRUE(window);
      if (round == 0) offset = (*window)->place.heap_offset;
      EXPECT_EQ((*window)->place.heap_offset, offset);
      EXPECT_EQ((*window)->address[12345], std::byte{0});
      (*window)->address[12345] = std::byte{1};
      ASSERT_TRUE(context.free_window(**window));
    }
  });
}

TEST_P(WindowTest, TooLongAndTooManyAreRefusedForAll) {
  run_contexts(2, make_settings(GetParam()), [](Context& context) {
    EXPECT_EQ(context.allocate_window(17 << 20).error().status, Status::kInvalidArgument);
    const auto most = context.allocate_window(12 << 20);
    ASSERT_TRUE(most);
    EXPECT_EQ(context.allocate_window(8 << 20).error().status, Status::kInvalidUsage);
    ASSERT_TRUE(context.free_window(**most));
    EXPECT_TRUE(context.allocate_window(12 << 20)) << "a refusal takes nothing";
  });
}

TEST_P(WindowTest, RanksThatDifferAreTold) {
  run_contexts(3, make_settings(GetParam()), [](Context& context) {
    EXPECT_EQ(context.allocate_window(context.rank() == 1 ? 8192 : 4096).error().status,
              Status::kInvalidUsage);
    auto window = context.allocate_window(4096);
    ASSERT_TRUE(window);
    auto other = context.allocate_window(4096);
    ASSERT_TRUE(other);
    EXPECT_EQ(context.free_window(context.rank() == 2 ? **window : **other).status(), Status::kInvalidUsage);
    EXPECT_TRUE(context.free_window(**window)) << "both are still there";
    EXPECT_TRUE(context.free_window(**other));
  });
}

TEST_P(WindowTest, MemoryThatCannotBeSharedIsRefused) {
  run_contexts(2, make_settings(GetParam()), [](Context& context) {
    std::vector<std::byte> mine(4096);
    EXPECT_EQ(context.register_window(mine.data(), mine.size()).error().status, Status::kInvalidUsage);
    EXPECT_TRUE(context.allocate_window(4096)) << "the context goes on";
  });
}

TEST(ContextTest, SettingsThatDifferAreTold) {
  run_ranks(2, [&](bootstrap::Bootstrap joined, uint32_t rank) {
    ContextSettings settings = make_settings();
    if (rank == 1) settings.teams = 9;
    EXPECT_EQ(Context::create(std::move(joined), settings).error().status, Status::kInvalidUsage);
  });
}

TEST(ContextTest, SeveralLiveInAProcess) {
  run_contexts(2, make_settings(), [](Context& outer) {
    auto window = outer.allocate_window(4096);
    ASSERT_TRUE(window);
    run_contexts(1, make_settings(SymmPath::kRdma), [](Context& inner) {
      EXPECT_EQ(inner.count_ranks(), 1U);
      EXPECT_TRUE(inner.allocate_window(4096));
      EXPECT_EQ(inner.world().context().has_remote, 0);
    });
    EXPECT_EQ(outer.find_window((*window)->address), *window);
  });
}

}  // namespace
}  // namespace verbena::symm
