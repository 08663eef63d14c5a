#include "protocol/datagram/departures.h"

#include <gtest/gtest.h>

namespace verbena::protocol::datagram {
namespace {

constexpr uint32_t kIndexes = 1U << Departures::kIndexBits;
constexpr Stamp kUntold = 7;

TEST(DeparturesTest, APacketLeavesOnceThoseBeforeItHaveLeft) {
  Departures departures;
  Stamp when = kUntold;
  EXPECT_FALSE(departures.has_left(0, when));
  EXPECT_EQ(when, kUntold);
  departures.note(100);
  departures.note(200);
  EXPECT_TRUE(departures.has_left(0, when));
  EXPECT_EQ(when, 100U);
  EXPECT_TRUE(departures.has_left(1, when));
  EXPECT_EQ(when, 200U);
  EXPECT_FALSE(departures.has_left(2, when));
  EXPECT_FALSE(departures.has_left(127, when));
}

TEST(DeparturesTest, OfThoseThatLeftLongAgoNobodyKnowsWhen) {
  Departures departures;
  for (uint32_t i = 0; i < 3 * Departures::kTimes; ++i) departures.note(i);
  Stamp when = kUntold;
  for (const uint32_t index : {0U, 5U, Departures::kTimes, 2 * Departures::kTimes - 1}) {
    EXPECT_TRUE(departures.has_left(index, when));
    EXPECT_EQ(when, kUntold) << index;
  }
  EXPECT_TRUE(departures.has_left(2 * Departures::kTimes, when));
  EXPECT_EQ(when, 2 * Departures::kTimes);
}

TEST(DeparturesTest, IndexesWrap) {
  Departures departures;
  for (uint32_t i = 0; i < kIndexes + 2; ++i) departures.note(i);
  Stamp when = kUntold;
  EXPECT_TRUE(departures.has_left(kIndexes - 1, when));
  EXPECT_EQ(when, kIndexes - 1);
  EXPECT_TRUE(departures.has_left(1, when));
  EXPECT_EQ(when, kIndexes + 1);
  EXPECT_FALSE(departures.has_left(2, when));
  EXPECT_FALSE(departures.has_left(100, when));
}

}  // namespace
}  // namespace verbena::protocol::datagram
