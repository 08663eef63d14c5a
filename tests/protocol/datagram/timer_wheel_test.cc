#include "protocol/datagram/timer_wheel.h"

#include <gtest/gtest.h>

#include <vector>

#include "protocol/random.h"

namespace verbena::protocol::datagram {
namespace {

// Beside a list that is looked through: who is due is visited within a tick, nobody too early, none is lost.
TEST(TimerWheelTest, VisitsWhoIsDueWithinATick) {
  constexpr uint32_t kEntries = 200;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Random random(seed);
    TimerWheel wheel;
    std::vector<TimerLink> links(kEntries);
    std::vector<int64_t> wanted(kEntries, kNeverNs);
    const auto of = [&](uint32_t id) -> TimerLink& { return links[id]; };
    int64_t now_ns = 1'000'000'000;
    for (int step = 0; step < 5'000; ++step) {
      const uint32_t id = random.between(0, kEntries - 1);
      switch (random.between(0, 5)) {
        case 0:
          wheel.remove(id, of);
          wanted[id] = kNeverNs;
          break;
        default: {
          const int64_t distances[] = {1'000, 100'000, 3'000'000, 500'000'000, 20'000'000'000};
          const int64_t at_ns =
              now_ns +
              static_cast<int64_t>(random.next() % static_cast<uint64_t>(distances[random.between(0, 4)]));
          wheel.file(id, at_ns, of);
          wanted[id] = std::min(wanted[id], at_ns);
        }
      }
      const int64_t leaps[] = {0, 3'000, 20'000, 700'000, 50'000'000};
      now_ns += leaps[random.between(0, 4)];
      wheel.advance(now_ns, of, [&](uint32_t visited, int64_t) {
        ASSERT_LE(wanted[visited], now_ns) << "too early";
        wanted[visited] = kNeverNs;
        // What a visit files anew, also for others, counts from now on.
        if (random.happens(30)) {
          const uint32_t other = random.between(0, kEntries - 1);
          wheel.file(other, now_ns + 10'000, of);
          wanted[other] = std::min(wanted[other], now_ns + 10'000);
        }
      });
      int64_t next_ns = kNeverNs;
      for (uint32_t i = 0; i < kEntries; ++i) {
        ASSERT_GT(wanted[i], now_ns - kWheelTickNs) << "seed " << seed << " step " << step << ": too late";
        next_ns = std::min(next_ns, wanted[i]);
      }
      ASSERT_EQ(wheel.is_empty(), next_ns == kNeverNs);
      if (next_ns != kNeverNs) {
        ASSERT_LE(wheel.find_next_ns(), next_ns + kWheelTickNs);
      }
    }
  }
}

// A deadline that moves on costs nothing: the entry stays where it was.
TEST(TimerWheelTest, LaterDeadlinesDoNotFileAnew) {
  TimerWheel wheel;
  std::vector<TimerLink> links(1);
  const auto of = [&](uint32_t id) -> TimerLink& { return links[id]; };
  wheel.file(0, 100'000, of);
  wheel.file(0, 200'000, of);
  EXPECT_EQ(links[0].filed_ns, 100'000);
  int visits = 0;
  wheel.advance(150'000, of, [&](uint32_t, int64_t) { ++visits; });
  EXPECT_EQ(visits, 1);
  EXPECT_TRUE(wheel.is_empty());
}

}  // namespace
}  // namespace verbena::protocol::datagram
