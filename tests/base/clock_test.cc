#include "base/clock.h"

#include <gtest/gtest.h>

namespace verbena::base {
namespace {

TEST(Clock, NeverGoesBack) {
  int64_t before = monotonic_ns();
  for (int i = 0; i < 1000; ++i) {
    const int64_t now = monotonic_ns();
    ASSERT_GE(now, before);
    before = now;
  }
}

TEST(Deadline, PassesOnceItsTimeHasCome) {
  const Deadline late = Deadline::after_ms(3'600'000);
  EXPECT_FALSE(late.has_passed());
  EXPECT_GT(late.remaining_ms(), 0);
  EXPECT_LE(late.remaining_ms(), 3'600'000);
  const Deadline soon = Deadline::after_ms(5);
  EXPECT_LE(soon.remaining_ms(), 5);
  while (!soon.has_passed()) continue;
  EXPECT_EQ(soon.remaining_ms(), 0);
}

TEST(Deadline, OfZeroHasPassed) {
  EXPECT_TRUE(Deadline::after_ms(0).has_passed());
}

}  // namespace
}  // namespace verbena::base
