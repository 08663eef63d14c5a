#include "protocol/datagram/departures.h"

#include <gtest/gtest.h>

namespace verbena::protocol::datagram {
namespace {

constexpr uint32_t kIndexes = 1U << Departures::kIndexBits;

TEST(DeparturesTest, APacketLeavesOnceThoseBeforeItHaveLeft) {
  Departures departures;
  Departure when{7, 8};
  EXPECT_FALSE(departures.has_left(0, when));
  EXPECT_EQ(when.after, 7U);
  EXPECT_EQ(when.before, 8U);
  departures.note({100, 120});
  departures.note({200, 220});
  EXPECT_TRUE(departures.has_left(0, when));
  EXPECT_EQ(when.after, 100U);
  EXPECT_EQ(when.before, 120U);
  EXPECT_TRUE(departures.has_left(1, when));
  EXPECT_EQ(when.after, 200U);
  EXPECT_EQ(when.before, 220U);
  EXPECT_FALSE(departures.has_left(2, when));
  EXPECT_FALSE(departures.has_left(127, when));
}

TEST(DeparturesTest, OneThatLeftLongAgoDidSoAtTheLatestWithTheOldestThatIsKnown) {
  Departures departures;
  for (uint32_t i = 0; i < 3 * Departures::kTimes; ++i) departures.note({i, i});
  Departure when{9, 9};
  for (const uint32_t index : {0U, 5U, Departures::kTimes, 2 * Departures::kTimes - 1}) {
    ASSERT_TRUE(departures.has_left(index, when));
    EXPECT_EQ(when.after, 9U);
    EXPECT_EQ(when.before, 2 * Departures::kTimes) << index;
  }
  ASSERT_TRUE(departures.has_left(2 * Departures::kTimes + 1, when));
  EXPECT_EQ(when.after, 2 * Departures::kTimes + 1);
  EXPECT_EQ(when.before, 2 * Departures::kTimes + 1);
}

TEST(DeparturesTest, IndexesWrap) {
  Departures departures;
  for (uint32_t i = 0; i < kIndexes + 2; ++i) departures.note({i, i});
  Departure when{};
  EXPECT_TRUE(departures.has_left(kIndexes - 1, when));
  EXPECT_EQ(when.before, kIndexes - 1);
  EXPECT_TRUE(departures.has_left(1, when));
  EXPECT_EQ(when.before, kIndexes + 1);
  EXPECT_FALSE(departures.has_left(2, when));
  EXPECT_FALSE(departures.has_left(100, when));
}

}  // namespace
}  // namespace verbena::protocol::datagram
