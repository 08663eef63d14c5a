// The tuner of one communicator. NCCL asks all ranks the same questions, and the communicator hangs unless
// all ranks give the same answers. So an answer depends only on the arguments, the shape, the settings and
// the tuning file.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "tuner/cost_model.h"
#include "tuner/guard.h"

namespace verbena::tuner {

// The user's NCCL_ALGO and NCCL_PROTO, for the release whose costs do not show them.
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

  // Changes the table, and *channels if a measurement says so. `function` is NCCL's number; unknown functions
  // change nothing. False if UNPACK can serve none of the combinations that NCCL and the user allow.
  bool adjust(int function, uint64_t bytes, const CostTable& table, int* channels) const;

  // For NCCL 2.21, which does not show its costs: returns an algorithm and a protocol, or nothing. NCCL
  // 2.21's kernels keep one count for all peers of a tree, so a tree must not be unpacked.
  std::optional<Choice> choose_without_costs(int function, uint64_t bytes, const UserChoice& user) const;

  std::string describe() const;

 private:
  Shape shape_;
  Guard guard_;
  std::shared_ptr<const Calibration> calibration_;
  CostModel model_;
};

}  // namespace verbena::tuner
