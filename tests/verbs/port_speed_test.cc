#include "verbs/port_speed.h"

#include <gtest/gtest.h>

namespace verbena::verbs {
namespace {

TEST(PortSpeed, IsLanesTimesRate) {
  EXPECT_EQ(compute_speed_mbps(1, 4), 10'000U);     // 1x QDR, as rxe says
  EXPECT_EQ(compute_speed_mbps(2, 16), 56'000U);    // 4x FDR
  EXPECT_EQ(compute_speed_mbps(2, 32), 100'000U);   // 4x EDR
  EXPECT_EQ(compute_speed_mbps(2, 128), 400'000U);  // 4x NDR
  EXPECT_EQ(compute_speed_mbps(2, 256), 800'000U);  // 4x XDR
  EXPECT_EQ(compute_speed_mbps(4, 64), 400'000U);   // 8x HDR
  EXPECT_EQ(compute_speed_mbps(16, 64), 100'000U);  // 2x HDR
}

TEST(PortSpeed, IsZeroForUnknownCodes) {
  EXPECT_EQ(compute_speed_mbps(0, 32), 0U);
  EXPECT_EQ(compute_speed_mbps(2, 0), 0U);
  EXPECT_EQ(compute_speed_mbps(3, 32), 0U);
}

}  // namespace
}  // namespace verbena::verbs
