#include "tuner/cost_curve.h"

#include <algorithm>
#include <cmath>

namespace verbena::tuner {

CostCurve::CostCurve(const std::vector<Point>& points) {
  for (const Point& point : points) {
    knots_.push_back({std::log(static_cast<double>(point.bytes)), std::log(point.microseconds)});
  }
}

double CostCurve::estimate_us(uint64_t bytes) const {
  const double x = std::log(static_cast<double>(std::max<uint64_t>(bytes, 1)));
  if (x <= knots_.front().log_bytes) return std::exp(knots_.front().log_us);
  if (x >= knots_.back().log_bytes) return std::exp(knots_.back().log_us + x - knots_.back().log_bytes);
  const auto above = std::upper_bound(knots_.begin(), knots_.end(), x,
                                      [](double value, const Knot& knot) { return value < knot.log_bytes; });
  const Knot &low = *(above - 1), &high = *above;
  const double share = (x - low.log_bytes) / (high.log_bytes - low.log_bytes);
  return std::exp(low.log_us + share * (high.log_us - low.log_us));
}

}  // namespace verbena::tuner
