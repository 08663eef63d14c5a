// The measured time as a function of the size.
#pragma once

#include <vector>

#include "tuner/calibration.h"

namespace verbena::tuner {

class CostCurve {
 public:
  // `points` must have at least one point and be in ascending order.
  explicit CostCurve(const std::vector<Point>& points);

  // Between two points: the line through their logarithms. Below the first point: its time, which is latency.
  // Above the last point: its bandwidth.
  double estimate_us(uint64_t bytes) const;

 private:
  struct Knot {
    double log_bytes;
    double log_us;
  };
  std::vector<Knot> knots_;
};

}  // namespace verbena::tuner
