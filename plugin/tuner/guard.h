// Excludes combinations whose kernels do not unpack, or unpack wrongly. LL and LL128 never unpack and are
// always allowed. The rules below are for the Simple protocol.
#pragma once

#include <cstddef>
#include <string>

#include "tuner/cost_table.h"

namespace verbena::tuner {

// The shape of a communicator.
struct Shape {
  size_t ranks = 1;
  size_t nodes = 1;
};

// The properties of the network plugin that the guard needs.
struct Offer {
  bool is_in_use = false;  // NCCL uses this network in the process
  bool unpack = false;     // its receives are offered as UNPACK
  bool tells_pat = false;  // NCCL marks the receives of PAT, and the plugin sends those directly
};

class Guard {
 public:
  Guard(Shape shape, Offer offer) : shape_(shape), offer_(offer) {}

  bool is_active() const { return offer_.is_in_use && offer_.unpack && shape_.nodes > 1; }
  bool forbids(Algorithm algorithm, Protocol protocol) const;
  void apply(const CostTable& table) const;
  // Returns a text for the log: whether the guard is active, and why.
  std::string describe() const;

 private:
  bool has_three_children() const;

  Shape shape_;
  Offer offer_;
};

}  // namespace verbena::tuner
