#include "protocol/rail_share.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "protocol/simulation/rails.h"

namespace verbena::protocol {
namespace {

using simulation::Rails;

constexpr uint64_t kMinStripe = 65536;
constexpr int64_t kMs = 1'000'000;

RailShare::Speeds equal_speeds(uint32_t mbps) {
  RailShare::Speeds speeds{};
  speeds.fill(mbps);
  return speeds;
}

uint64_t sum(const Shares& shares) {
  return std::accumulate(shares.begin(), shares.end(), uint64_t{0});
}

double part_of(const Shares& shares, uint32_t rail) {
  return static_cast<double>(shares[rail]) / static_cast<double>(sum(shares));
}

// A sender in the middle of its life: rails of any speed, some slow, some with a backlog.
RailShare draw_share(Random& random, uint32_t pairs, uint64_t min_stripe, int64_t* now_ns) {
  RailShare share;
  RailShare::Speeds speeds{};
  for (auto& speed : speeds) speed = random.between(1, 40) * 10'000;
  share.start(pairs, speeds, random.between(0, pairs - 1), min_stripe);
  for (uint32_t i = random.between(0, 30); i != 0; --i) {
    const uint32_t q = random.between(0, pairs - 1);
    const uint64_t bytes = random.next() >> random.between(40, 63);
    *now_ns += random.between(0, 100'000);
    share.note_posted(q, bytes, *now_ns);
    *now_ns += random.between(0, 1'000'000);
    if (random.happens(80)) share.note_completed(q, bytes, *now_ns);
    share.note_looked(*now_ns);
  }
  return share;
}

TEST(RailShare, CoversEveryMessageInWholeUnitsAndNoStripeIsTooShort) {
  Random random(1);
  for (int round = 0; round < 20'000; ++round) {
    const uint32_t pairs = random.between(1, kMaxQueuePairs);
    const uint64_t min_stripe = 4096U << random.between(0, 6);
    int64_t now_ns = 1;
    const RailShare share = draw_share(random, pairs, min_stripe, &now_ns);
    const uint64_t length = 1 + (random.next() >> random.between(30, 63));
    const uint64_t unit = random.happens(50) ? kDirectAlignBytes : 4096U << random.between(0, 4);
    Shares room{};
    std::fill_n(room.begin(), pairs, uint64_t{1} << 40);
    const Shares shares = share.split(length, unit, room, now_ns);
    ASSERT_EQ(sum(shares), divide_up(length, unit) * unit) << "round " << round;
    uint32_t used = 0, last = 0;
    for (uint32_t q = 0; q < kMaxQueuePairs; ++q) {
      ASSERT_EQ(shares[q] % unit, 0U);
      ASSERT_TRUE(q < pairs || shares[q] == 0);
      if (shares[q] != 0) ++used, last = q;
    }
    if (used == 1) continue;
    ASSERT_GE(length, 2 * min_stripe) << "round " << round;
    for (uint32_t q = 0; q < pairs; ++q) {
      if (shares[q] == 0) continue;
      const uint64_t bytes = q == last ? shares[q] - (sum(shares) - length) : shares[q];
      ASSERT_GE(bytes, min_stripe) << "round " << round << ", " << q << " of " << pairs;
    }
  }
}

TEST(RailShare, GivesNobodyMoreThanItsRoomAndUsesAllRoomThereIs) {
  Random random(2);
  for (int round = 0; round < 20'000; ++round) {
    const uint32_t pairs = random.between(1, kMaxQueuePairs);
    const uint32_t page = 4096U << random.between(0, 4);
    int64_t now_ns = 1;
    const RailShare share = draw_share(random, pairs, kMinStripe, &now_ns);
    Shares room{};
    for (uint32_t q = 0; q < pairs; ++q) room[q] = uint64_t{random.between(0, 20)} * page;
    const uint64_t length = random.between(1, 64 * page);
    const Shares shares = share.split(length, page, room, now_ns);
    for (uint32_t q = 0; q < pairs; ++q) ASSERT_LE(shares[q], room[q]) << "round " << round;
    ASSERT_EQ(sum(shares), std::min(sum(room), divide_up(length, page) * page)) << "round " << round;
  }
}

TEST(RailShare, FollowsTheLinksFromTheFirstMessageOn) {
  RailShare::Speeds speeds{100'000, 200'000, 400'000, 100'000};
  Rails rails(4, speeds, kMinStripe, 1);
  const Shares shares = rails.send(64 << 20);
  for (uint32_t q = 0; q < 4; ++q) EXPECT_NEAR(part_of(shares, q), speeds[q] / 800'000.0, 0.001);
}

TEST(RailShare, TakesRailsOfUnknownSpeedForEqual) {
  Rails rails(2, {400'000, 0}, kMinStripe, 1);
  EXPECT_NEAR(part_of(rails.send(64 << 20), 0), 0.5, 0.001);
}

TEST(RailShare, AShortMessageStaysOnItsHome) {
  for (uint32_t primary = 0; primary < 4; ++primary) {
    RailShare share;
    share.start(4, equal_speeds(400'000), primary, kMinStripe);
    Shares room{};
    room.fill(1 << 20);
    for (int64_t i = 0; i < 64; ++i) {
      EXPECT_TRUE(share.is_for_primary(8));
      EXPECT_EQ(share.split(8, kDirectAlignBytes, room, 1000 + i)[primary], kDirectAlignBytes);
      share.note_posted(primary, 8, kUnknownNs);
    }
    EXPECT_FALSE(share.is_for_primary(2 * kMinStripe)) << "worth two";
  }
}

TEST(RailShare, AShortMessageLeavesAHomeThatHasMuchToDoOrIsStuck) {
  Shares room{};
  room.fill(1 << 20);
  RailShare busy;
  busy.start(2, equal_speeds(100'000), 1, kMinStripe);
  busy.note_posted(1, 16 << 20, 1000);
  EXPECT_FALSE(busy.is_for_primary(8));
  EXPECT_EQ(busy.split(8, kDirectAlignBytes, room, 1000)[0], kDirectAlignBytes);
  RailShare stuck;
  stuck.start(2, equal_speeds(100'000), 1, kMinStripe);
  stuck.note_posted(1, 8, kUnknownNs);
  EXPECT_TRUE(stuck.is_for_primary(8)) << "nobody has waited yet";
  stuck.note_waiting(1000);
  EXPECT_EQ(stuck.split(8, kDirectAlignBytes, room, 2000)[1], kDirectAlignBytes);
  EXPECT_EQ(stuck.split(8, kDirectAlignBytes, room, 2 * kMs)[0], kDirectAlignBytes);
}

// 10 times slower than its link says, after a while: it should carry an eleventh.
TEST(RailShare, ARailThatTurnsSlowGetsLessWithinMillisecondsAndComesBack) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Random random(seed);
    const uint64_t length = uint64_t{1} << random.between(20, 24);
    Rails rails(2, equal_speeds(100'000), kMinStripe, seed);
    EXPECT_NEAR(part_of(rails.run(10 * kMs, length, random.between(1, 8)), 0), 0.5, 0.1) << "seed " << seed;
    rails.set_rate(0, 1.25);
    const uint32_t window = random.between(1, 8);
    rails.run(5 * kMs, length, window);
    EXPECT_LT(part_of(rails.run(10 * kMs, length, window), 0), 0.2) << "seed " << seed;
    rails.set_rate(0, 12.5);
    rails.run(100 * kMs, length, window);
    EXPECT_NEAR(part_of(rails.run(10 * kMs, length, window), 0), 0.5, 0.1) << "seed " << seed;
  }
}

// So slow that its share is below the minimum stripe: it gets a trickle, and comes back by it.
TEST(RailShare, ARailThatIsNotWorthAStripeIsProbed) {
  Rails rails(2, equal_speeds(100'000), kMinStripe, 1);
  rails.run(5 * kMs, 1 << 20, 4);
  rails.set_rate(0, 0.125);
  rails.run(20 * kMs, 1 << 20, 4);
  const Shares trickle = rails.run(500 * kMs, 1 << 20, 4);
  EXPECT_GT(trickle[0], 0U);
  EXPECT_LT(part_of(trickle, 0), 0.02);
  rails.set_rate(0, 12.5);
  rails.run(200 * kMs, 1 << 20, 4);
  EXPECT_NEAR(part_of(rails.run(20 * kMs, 1 << 20, 4), 0), 0.5, 0.1);
}

TEST(RailShare, AStalledRailGetsNothingBeforeItCompletesAnything) {
  Rails rails(2, equal_speeds(100'000), kMinStripe, 1);
  rails.run(5 * kMs, 1 << 20, 2);
  rails.set_rate(1, 0);
  for (int i = 0; i < 8; ++i) rails.run(kMs, 1 << 20, 100);  // the window is never full
  for (int i = 0; i < 50; ++i) EXPECT_EQ(rails.send(1 << 20)[1], 0U);
}

// It has little to do, and still does not do it: what it will do with more is no better.
TEST(RailShare, AStalledRailIsNoFasterThanWhatItHasNotDone) {
  RailShare share;
  share.start(2, equal_speeds(100'000), 0, kMinStripe);
  share.note_posted(1, 1 << 20, kMs);  // an idle link's 84 us
  Shares room{};
  room.fill(1 << 30);
  EXPECT_GT(part_of(share.split(16 << 20, kDirectAlignBytes, room, kMs), 1), 0.4);
  EXPECT_LT(part_of(share.split(16 << 20, kDirectAlignBytes, room, 2 * kMs), 1), 0.1);
  EXPECT_LT(part_of(share.split(16 << 20, kDirectAlignBytes, room, 6 * kMs), 1), 0.01);
}

// Whatever the links and the rails behind them are like, nearly everything they can do together is done.
TEST(RailShare, RailsOfAnySpeedAreKeptBusy) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    Random random(seed);
    const uint32_t count = random.between(2, kMaxQueuePairs);
    RailShare::Speeds speeds{};
    for (auto& speed : speeds) speed = random.between(1, 4) * 100'000;
    Rails rails(count, speeds, kMinStripe, seed);
    double total = 0;
    for (uint32_t q = 0; q < count; ++q) {
      const double rate = speeds[q] / 8000.0 / random.between(1, 5);
      rails.set_rate(q, rate);
      total += rate;
    }
    rails.run(20 * kMs, 16 << 20, 4);
    const uint64_t before = rails.done_bytes();
    rails.run(40 * kMs, 16 << 20, 4);
    EXPECT_GT(static_cast<double>(rails.done_bytes() - before) / 40e6, 0.85 * total) << "seed " << seed;
  }
}

// A sender that polls seldom sees all completions late; no rail loses its share for that.
TEST(RailShare, EqualRailsStayEqualHoweverSeldomSomebodyLooks) {
  for (const int64_t look_ns : {100, 10'000, 1'000'000}) {
    for (const uint64_t length : {200'000, 1 << 20, 16 << 20}) {
      Rails rails(2, equal_speeds(200'000), kMinStripe, 7);
      rails.set_look_every(look_ns);
      rails.run(20 * kMs, length, 3);
      EXPECT_NEAR(part_of(rails.run(50 * kMs, length, 3), 0), 0.5, 0.1) << look_ns << " " << length;
    }
  }
}

TEST(RailRate, IsNotBlamedForTheTimeInWhichNobodyLooked) {
  RailRate late, slow;
  for (RailRate* rate : {&late, &slow}) {
    rate->set_link(10);
    rate->note_posted(65536, kMs);
  }
  late.note_completed(65536, kMs + 1000, 2 * kMs);
  EXPECT_EQ(late.estimate(kMinStripe, 2 * kMs), 10);
  slow.note_completed(65536, 2 * kMs - 1000, 2 * kMs);
  EXPECT_NEAR(slow.estimate(kMinStripe, 2 * kMs), 0.0656, 0.0001);
}

// Its probe is found as late as the others' stripes, which are much longer.
TEST(RailShare, ARailComesBackHoweverSeldomSomebodyLooks) {
  Rails rails(2, equal_speeds(100'000), kMinStripe, 3);
  rails.set_look_every(200'000);
  rails.set_rate(0, 0.125);
  rails.run(50 * kMs, 400'000, 1);
  EXPECT_LT(part_of(rails.run(50 * kMs, 400'000, 1), 0), 0.1);
  rails.set_rate(0, 12.5);
  rails.run(200 * kMs, 400'000, 1);
  EXPECT_NEAR(part_of(rails.run(50 * kMs, 400'000, 1), 0), 0.5, 0.15);
}

// Its queue pair was given up while the completion was on its way.
TEST(RailShare, WhatIsFoundCompleteAfterItWasForgottenCountsNoMore) {
  RailShare share;
  share.start(2, equal_speeds(100'000), 0, kMinStripe);
  share.note_posted(0, 1000, kMs);
  share.forget_outstanding(0);
  share.note_completed(0, 1000, kMs);
  EXPECT_EQ(share.rate(0).outstanding_bytes(), 0U);
  EXPECT_FALSE(share.is_measuring());
  EXPECT_TRUE(share.is_for_primary(1000));
}

TEST(RailShare, HomesAreSpreadOverTheRailsHoweverADeviceNumbers) {
  for (const uint32_t step : {1, 2, 3, 4, 6, 8, 16, 64}) {
    for (uint32_t pairs = 2; pairs <= kMaxQueuePairs; ++pairs) {
      std::array<int, kMaxQueuePairs> homes{};
      for (uint32_t i = 0; i < 1000; ++i) ++homes[choose_primary(100 + i * step, pairs)];
      const auto [least, most] = std::minmax_element(homes.begin(), homes.begin() + pairs);
      EXPECT_LT(*most, 2 * *least + 20) << "steps of " << step << " over " << pairs;
    }
  }
}

}  // namespace
}  // namespace verbena::protocol
