#include "protocol/datagram/path_table.h"

#include <gtest/gtest.h>

#include <array>

#include "protocol/random.h"

namespace verbena::protocol::datagram {
namespace {

constexpr uint32_t kAny = ~0U, kNone = 32;
constexpr Stamp kMillisecond = 1'000'000 / kStampNs;

std::array<uint32_t, 32> count_picks(PathTable& table, uint32_t picks, Stamp now, uint32_t allowed = kAny) {
  std::array<uint32_t, 32> counts{};
  for (uint32_t i = 0; i < picks; ++i) ++counts[table.pick(allowed, kNone, now)];
  return counts;
}

TEST(PathTableTest, AllPathsTakeTurns) {
  for (const uint32_t paths : {1U, 3U, 8U, 32U}) {
    PathTable table(~0U >> (32 - paths), 5);
    const auto counts = count_picks(table, paths * 10, 0);
    for (uint32_t path = 0; path < 32; ++path)
      EXPECT_EQ(counts[path], path < paths ? 10U : 0U) << paths << " paths";
  }
}

TEST(PathTableTest, OnlyAllowedOnesAndTheAvoidedOneLast) {
  PathTable table(0xFFFFFFFF, 0);
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(table.pick(0xF0, kNone, 0) / 4, 1U);
    EXPECT_NE(table.pick(0x3, 1, 0), 1U);
  }
  EXPECT_EQ(table.pick(0x2, 1, 0), 1U) << "there is no other";
  EXPECT_EQ(table.pick(0, kNone, 0), PathTable::kNoPath);
}

TEST(PathTableTest, ARestingPathIsNotTakenWhileAnotherOnlyHasNoRoom) {
  PathTable table(0x3, 0);
  table.note_lost(0, 0);
  table.note_lost(0, 0);
  EXPECT_EQ(table.pick(0b01, kNone, 1), PathTable::kNoPath);
  EXPECT_EQ(table.pick(0b11, kNone, 1), 1U);
}

TEST(PathTableTest, LatePathsAreSkipped) {
  PathTable table(0xFF, 0);
  for (int i = 0; i < 5; ++i) table.note_late(1U << 3);
  const auto counts = count_picks(table, 7 * 5, 0);
  EXPECT_EQ(counts[3], 0U);
  EXPECT_GT(count_picks(table, 16, 0)[3], 0U);
  for (int i = 0; i < 1'000; ++i) table.note_late(0xFF);
  EXPECT_NE(table.pick(kAny, kNone, 0), PathTable::kNoPath) << "all are late";
}

TEST(PathTableTest, TwoLossesInARowRestAPathAndATrialWakesIt) {
  PathTable table(0xFF, 0);
  Stamp now = 1'000'000;
  EXPECT_FALSE(table.note_lost(2, now));
  table.note_delivered(2);
  EXPECT_FALSE(table.note_lost(2, now)) << "something was delivered between them";
  EXPECT_TRUE(table.note_lost(2, now));
  EXPECT_EQ(count_picks(table, 70, now)[2], 0U);
  now += kMillisecond + 1;
  EXPECT_EQ(count_picks(table, 70, now)[2], 1U) << "one packet on trial";
  EXPECT_TRUE(table.note_lost(2, now)) << "which is lost: it rests twice as long";
  EXPECT_EQ(count_picks(table, 70, now + kMillisecond + 1)[2], 0U);
  now += 2 * kMillisecond + 1;
  EXPECT_EQ(count_picks(table, 70, now)[2], 1U);
  table.note_delivered(2);
  EXPECT_EQ(count_picks(table, 80, now)[2], 10U) << "it is as good as the others";
}

// The trial's packet leaves again over another path before anything is heard of it.
TEST(PathTableTest, ATrialWithoutAnOutcomeIsRepeated) {
  PathTable table(0xFF, 0);
  Stamp now = 1'000'000;
  table.note_unknown(2, now);
  EXPECT_EQ(table.resting(), 0U) << "it is not on trial";
  table.note_lost(2, now);
  ASSERT_TRUE(table.note_lost(2, now));
  now += kMillisecond + 1;
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(count_picks(table, 70, now)[2], 1U) << "trial " << i;
    table.note_unknown(2, now);
    EXPECT_EQ(count_picks(table, 70, now)[2], 0U) << "it rests, for as long as the loss was worth";
    now += 2 * kMillisecond + 1;
  }
  EXPECT_EQ(count_picks(table, 70, now)[2], 1U);
  table.note_delivered(2);
  EXPECT_EQ(count_picks(table, 80, now)[2], 10U);
}

TEST(PathTableTest, RestsGrowToAQuarterOfASecond) {
  PathTable table(0x3, 0);
  Stamp now = 0;
  table.note_lost(0, now);
  table.note_lost(0, now);
  for (int i = 0; i < 20; ++i) {
    now += 256 * kMillisecond + 1;
    EXPECT_EQ(count_picks(table, 10, now)[0], 1U) << "trial " << i;
    table.note_lost(0, now);
  }
}

TEST(PathTableTest, IfAllRestAnyIsAsGood) {
  PathTable table(0xF, 0);
  for (uint32_t path = 0; path < 4; ++path) {
    table.note_lost(path, 0);
    table.note_lost(path, 0);
  }
  const auto counts = count_picks(table, 40, 1);
  for (uint32_t path = 0; path < 4; ++path) EXPECT_EQ(counts[path], 10U);
}

// Where a tenth of all packets is lost everywhere, two losses in a row say nothing of a path.
TEST(PathTableTest, LossesThatHitAllPathsRestNone) {
  PathTable table(0xFFFFFFFF, 0);
  Random random(9);
  uint32_t rests = 0;
  for (int i = 0; i < 20'000; ++i) {
    const uint32_t path = table.pick(kAny, kNone, 0);
    if (random.happens(10)) {
      rests += table.note_lost(path, 0) ? 1 : 0;
    } else {
      table.note_delivered(path);
    }
  }
  EXPECT_LT(rests, 32U);
  // One that loses everything is still found out.
  int losses = 0;
  while (!table.note_lost(7, 0)) ++losses;
  EXPECT_LT(losses, 10);
}

TEST(PathTableTest, APortThatIsDownTakesItsPathsAlong) {
  PathTable table(0xFF, 0);
  table.rest_all(0x0F, 0);
  const auto counts = count_picks(table, 40, 1);
  for (uint32_t path = 0; path < 8; ++path) EXPECT_EQ(counts[path], path < 4 ? 0U : 10U);
  table.wake_all(0x0F);
  EXPECT_EQ(count_picks(table, 80, 1)[0], 10U);
}

}  // namespace
}  // namespace verbena::protocol::datagram
