// One communicator's tuner. NCCL asks all ranks the same questions and all must give the same answers, or the
// communicator hangs: every answer depends on the arguments, the shape, the settings and the tuning file
// alone.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "tuner/cost_model.h"
#include "tuner/guard.h"

namespace verbena::tuner {

// The user's NCCL_ALGO and NCCL_PROTO: only for the release that does not show them in its costs.
struct UserChoice {
  std::string algorithm;
  std::string protocol;
};

struct Choice {
  Algorithm algorithm;
  Protocol protocol;
};

class Tuner {
 public:
  // `calibration` may be null.
  Tuner(Shape shape, Offer offer, std::shared_ptr<const Calibration> calibration);

  // Writes the table, and *channels where a measurement says so. `function` is NCCL's number; what we do not
  // know stays as it is. False: everything that NCCL or the user left is something UNPACK cannot serve.
  bool adjust(int function, uint64_t bytes, const CostTable& table, int* channels) const;

  // For NCCL 2.21, which shows no costs and takes an algorithm and a protocol or nothing. Its kernels keep
  // one count for all peers of a tree, so that no tree may be unpacked.
  std::optional<Choice> choose_without_costs(int function, uint64_t bytes, const UserChoice& user) const;

  std::string describe() const;

 private:
  Shape shape_;
  Guard guard_;
  std::shared_ptr<const Calibration> calibration_;
  CostModel model_;
};

}  // namespace verbena::tuner
