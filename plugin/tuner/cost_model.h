// Measured costs for the shape of one communicator, and the choice that they justify.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "tuner/cost_curve.h"
#include "tuner/guard.h"

namespace verbena::tuner {

class CostModel {
 public:
  CostModel() = default;
  // Uses the measurements with the same numbers of ranks and nodes. If there are none and the communicator
  // has several nodes, borrows those with the closest number of ranks.
  CostModel(const Calibration& calibration, Shape shape);

  size_t curve_count() const { return curve_count_; }
  bool is_borrowed() const { return is_borrowed_; }

  // Changes the table and *channels only if NCCL's choice was measured, and another allowed choice was
  // measured to be clearly faster. The faster choice becomes the cheapest entry. Costs of NCCL's model are
  // never compared with measured costs. Measurements of another number of ranks change only the number of
  // channels of NCCL's own choice.
  void apply(Function function, uint64_t bytes, const CostTable& table, int* channels) const;

  // Returns the fastest protocol measured for an algorithm.
  std::optional<Protocol> find_fastest(Function function, Algorithm algorithm, uint64_t bytes) const;

 private:
  struct Curve {
    int channels;  // 0: NCCL's own number
    CostCurve cost;
  };
  const std::vector<Curve>& find(Function function, Algorithm algorithm, Protocol protocol) const {
    return curves_[static_cast<size_t>(function)][static_cast<size_t>(algorithm)]
                  [static_cast<size_t>(protocol)];
  }

  std::array<std::array<std::array<std::vector<Curve>, kProtocolCount>, kAlgorithmCount>, kFunctionCount>
      curves_;
  size_t curve_count_ = 0;
  bool is_borrowed_ = false;
};

}  // namespace verbena::tuner
