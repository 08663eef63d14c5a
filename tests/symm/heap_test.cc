#include "device/symm/heap.h"

#include <gtest/gtest.h>

#include <random>

namespace verbena::symm {
namespace {

TEST(OffsetPlanTest, TakesTheLowestThatHasRoom) {
  OffsetPlan plan(100);
  EXPECT_EQ(plan.take(40), 0);
  EXPECT_EQ(plan.take(30), 40);
  EXPECT_EQ(plan.take(30), 70);
  EXPECT_EQ(plan.take(1), std::nullopt);
  plan.give_back(40);
  EXPECT_EQ(plan.take(31), std::nullopt);
  EXPECT_EQ(plan.take(20), 40);
  EXPECT_EQ(plan.take(10), 60);
  plan.give_back(0);
  plan.give_back(40);
  EXPECT_EQ(plan.take(60), 0) << "neighbours that are free are one room";
}

TEST(OffsetPlanTest, RefusesNothingAndTooMuch) {
  OffsetPlan plan(100);
  EXPECT_EQ(plan.take(0), std::nullopt);
  EXPECT_EQ(plan.take(101), std::nullopt);
  EXPECT_EQ(plan.take(UINT64_MAX), std::nullopt);
  EXPECT_EQ(plan.take(100), 0);
}

// Whatever is taken and given back: nothing overlaps, nothing lies outside.
TEST(OffsetPlanTest, NeverGivesAnythingTwice) {
  constexpr uint64_t kLength = 1000;
  OffsetPlan plan(kLength);
  std::map<uint64_t, uint64_t> taken;
  std::mt19937 random(7);
  for (int step = 0; step < 20000; ++step) {
    const uint64_t length = random() % 90 + 1;
    if (const auto offset = plan.take(length)) {
      const auto next = taken.lower_bound(*offset);
      ASSERT_LE(*offset + length, next == taken.end() ? kLength : next->first);
      const bool is_first = next == taken.begin();
      ASSERT_LE(is_first ? 0 : std::prev(next)->first + std::prev(next)->second, *offset);
      taken[*offset] = length;
    }
    if (taken.size() > 8) {
      const auto victim = std::next(taken.begin(), random() % taken.size());
      plan.give_back(victim->first);
      taken.erase(victim);
    }
  }
}

constexpr base::MemoryOwner kHost{base::kNoGpu};

TEST(VirtualMemoryTest, APieceIsTheSameAtEveryPlace) {
  const uint64_t unit = *base::measure_granularity(kHost);
  const auto range = base::AddressRange::reserve(kHost, 4 * unit);
  ASSERT_TRUE(range);
  auto piece = base::MemoryPiece::allocate(kHost, unit);
  ASSERT_TRUE(piece);
  const auto descriptor = piece->share();
  ASSERT_TRUE(descriptor);
  const auto other = base::MemoryPiece::open(kHost, descriptor->get(), unit);
  ASSERT_TRUE(other);
  const auto first = base::MappedPiece::map(*piece, kHost, range->begin());
  const auto second = base::MappedPiece::map(*other, kHost, range->begin() + 2 * unit);
  ASSERT_TRUE(first && second);
  first->begin()[unit - 1] = std::byte{42};
  EXPECT_EQ(second->begin()[unit - 1], std::byte{42});
  ASSERT_TRUE(base::fill_zero(kHost, second->begin() + unit - 1, 1));
  EXPECT_EQ(first->begin()[unit - 1], std::byte{0});
}

TEST(VirtualMemoryTest, AddressesStayReservedBehindAMapping) {
  const uint64_t unit = *base::measure_granularity(kHost);
  const auto range = base::AddressRange::reserve(kHost, unit);
  ASSERT_TRUE(range);
  const auto piece = base::MemoryPiece::allocate(kHost, unit);
  ASSERT_TRUE(piece);
  for (int round = 0; round < 3; ++round) {
    const auto mapped = base::MappedPiece::map(*piece, kHost, range->begin());
    ASSERT_TRUE(mapped);
    EXPECT_EQ(mapped->begin()[0], std::byte(round)) << "a piece keeps its contents without an address";
    mapped->begin()[0] = std::byte(round + 1);
  }
}

TEST(VirtualMemoryTest, RefusesAPieceThatIsShorterThanItsOwnerSays) {
  const uint64_t unit = *base::measure_granularity(kHost);
  const auto piece = base::MemoryPiece::allocate(kHost, unit);
  ASSERT_TRUE(piece);
  const auto descriptor = piece->share();
  ASSERT_TRUE(descriptor);
  EXPECT_EQ(base::MemoryPiece::open(kHost, descriptor->get(), 2 * unit).error().status,
            base::Status::kRemote);
  EXPECT_EQ(base::MemoryPiece::open(kHost, -1, unit).error().status, base::Status::kSystem);
}

TEST(VirtualMemoryTest, HostMemoryCannotBeSharedLaterOn) {
  int word = 0;
  const auto found = base::find_piece(&word);
  ASSERT_FALSE(found);
  EXPECT_EQ(found.error().status, base::Status::kInvalidUsage);
}

}  // namespace
}  // namespace verbena::symm
