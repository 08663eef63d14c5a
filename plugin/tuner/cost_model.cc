#include "tuner/cost_model.h"

#include <limits>

namespace verbena::tuner {
namespace {

// Figures vary by 10 % with the placement of processes. A smaller gain does not justify another choice.
constexpr double kClearGain = 0.9;
// NCCL multiplies the cost of an entry by a thousand if the entry loses precision (fp8 over long rings). The
// tuner does not overrule this.
constexpr float kLastResort = 100.0f;

bool is_of(const Measurement& measurement, Shape shape) {
  return measurement.ranks == shape.ranks && measurement.nodes == shape.nodes;
}

// The distance of two numbers of ranks: their ratio.
double find_distance(size_t a, size_t b) {
  return a < b ? static_cast<double>(b) / static_cast<double>(a)
               : static_cast<double>(a) / static_cast<double>(b);
}

// The measured shape that is closest to this one. All ranks find the same.
Shape find_nearest(const Calibration& calibration, Shape shape) {
  Shape nearest = shape;
  double distance = std::numeric_limits<double>::infinity();
  for (const Measurement& m : calibration.collectives) {
    if (is_of(m, shape)) return shape;
    const double candidate = find_distance(m.ranks, shape.ranks);
    if (m.nodes < 2 || shape.nodes < 2 || candidate >= distance) continue;
    nearest = {m.ranks, m.nodes};
    distance = candidate;
  }
  return nearest;
}

}  // namespace

CostModel::CostModel(const Calibration& calibration, Shape wanted) {
  const Shape shape = find_nearest(calibration, wanted);
  is_borrowed_ = shape.ranks != wanted.ranks || shape.nodes != wanted.nodes;
  for (const Measurement& m : calibration.collectives) {
    if (!is_of(m, shape)) continue;
    curves_[static_cast<size_t>(m.function)][static_cast<size_t>(m.algorithm)]
           [static_cast<size_t>(m.protocol)]
               .push_back({m.channels, CostCurve(m.points)});
    ++curve_count_;
  }
}

void CostModel::apply(Function function, uint64_t bytes, const CostTable& table, int* channels) const {
  if (curve_count_ == 0) return;
  float* own = nullptr;  // the entry that NCCL would choose
  double own_us = std::numeric_limits<double>::infinity();
  visit_allowed(table, [&](Algorithm algorithm, Protocol protocol, float& entry) {
    if (own != nullptr && entry >= *own) return;
    own = &entry;
    own_us = std::numeric_limits<double>::infinity();
    for (const Curve& curve : find(function, algorithm, protocol)) {
      if (curve.channels == 0) own_us = curve.cost.estimate_us(bytes);
    }
  });
  if (own == nullptr || own_us == std::numeric_limits<double>::infinity()) return;
  float* best = nullptr;
  double best_us = own_us * kClearGain;
  int best_channels = 0;
  visit_allowed(table, [&](Algorithm algorithm, Protocol protocol, float& entry) {
    if (entry > *own * kLastResort || (is_borrowed_ && &entry != own)) return;
    for (const Curve& curve : find(function, algorithm, protocol)) {
      const double us = curve.cost.estimate_us(bytes);
      if (us >= best_us) continue;
      best = &entry;
      best_us = us;
      best_channels = curve.channels;
    }
  });
  if (best == nullptr) return;
  if (best_channels > 0) *channels = best_channels;
  if (is_borrowed_) return;
  // Scales the table to the measured time of NCCL's choice, so that every other entry costs at least that
  // time.
  const double scale = *own > 0.0f ? own_us / static_cast<double>(*own) : 1.0;
  visit_allowed(table, [&](Algorithm, Protocol, float& entry) {
    entry = static_cast<float>(static_cast<double>(entry) * scale);
  });
  *best = static_cast<float>(best_us);
}

std::optional<Protocol> CostModel::find_fastest(Function function, Algorithm algorithm,
                                                uint64_t bytes) const {
  std::optional<Protocol> fastest;
  double fastest_us = std::numeric_limits<double>::infinity();
  for (int p = 0; p < kProtocolCount; ++p) {
    for (const Curve& curve : find(function, algorithm, static_cast<Protocol>(p))) {
      const double us = curve.cost.estimate_us(bytes);
      if (curve.channels != 0 || us >= fastest_us) continue;
      fastest = static_cast<Protocol>(p);
      fastest_us = us;
    }
  }
  return fastest;
}

}  // namespace verbena::tuner
