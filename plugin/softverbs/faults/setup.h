// The variables SOFTVERBS_FAULTS and SOFTVERBS_RAILS, read once.
#pragma once

#include <string>

#include "softverbs/faults/fault_plan.h"

namespace verbena::softverbs::faults {

// The content of SOFTVERBS_FAULTS and SOFTVERBS_RAILS, read once.
struct Setup {
  bool is_valid = true;  // false: no device is offered; a line on stderr gave the reason
  FaultPlan plan;
  std::string rails_path;  // empty: none
};

const Setup& get_setup();

// Reads a small file. Returns false, with errno, if it cannot be read.
bool read_file(const std::string& path, std::string& text);

}  // namespace verbena::softverbs::faults
