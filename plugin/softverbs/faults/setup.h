#pragma once

#include <string>

#include "softverbs/faults/plan.h"

namespace verbena::softverbs::faults {

// What SOFTVERBS_FAULTS and SOFTVERBS_RAILS say; read once.
struct Setup {
  bool is_valid = true;  // else one line on stderr has said why, and no device is to be had
  Plan plan;
  std::string rails_path;  // empty: none
};

const Setup& get_setup();

// Of a small file. False and errno when it cannot be read.
bool read_file(const std::string& path, std::string& text);

}  // namespace verbena::softverbs::faults
