// Interpolation of measured times.
#include "tuner/cost_curve.h"

#include <gtest/gtest.h>

namespace verbena::tuner {
namespace {

TEST(CostCurveTest, GoesThroughItsPoints) {
  const std::vector<Point> points{{8, 20.5}, {1024, 21.0}, {65536, 40.0}, {1 << 20, 200.0}};
  const CostCurve curve(points);
  for (const Point& point : points) {
    EXPECT_NEAR(curve.estimate_us(point.bytes), point.microseconds, 1e-9) << point.bytes;
  }
}

TEST(CostCurveTest, IsAStraightLineOfLogarithmsBetween) {
  const CostCurve curve({{100, 10.0}, {10000, 1000.0}});
  EXPECT_NEAR(curve.estimate_us(1000), 100.0, 1e-9);
  EXPECT_NEAR(CostCurve({{16, 5.0}, {64, 20.0}}).estimate_us(32), 10.0, 1e-9);
}

TEST(CostCurveTest, IsFlatBelowAndKeepsItsBandwidthAbove) {
  const CostCurve curve({{1024, 20.0}, {1 << 20, 100.0}});
  EXPECT_NEAR(curve.estimate_us(0), 20.0, 1e-9);
  EXPECT_NEAR(curve.estimate_us(8), 20.0, 1e-9);
  EXPECT_NEAR(curve.estimate_us(4 << 20), 400.0, 1e-6);
  EXPECT_NEAR(curve.estimate_us(uint64_t{1} << 40), 100.0 * (1 << 20), 1e-3);
}

TEST(CostCurveTest, OnePointIsEnough) {
  const CostCurve curve({{1000, 50.0}});
  EXPECT_NEAR(curve.estimate_us(10), 50.0, 1e-9);
  EXPECT_NEAR(curve.estimate_us(1000), 50.0, 1e-9);
  EXPECT_NEAR(curve.estimate_us(2000), 100.0, 1e-9);
}

}  // namespace
}  // namespace verbena::tuner
