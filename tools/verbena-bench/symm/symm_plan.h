// The arguments of one rank's process. Plain types, because nvcc compiles its users.
#pragma once

#include <string>

namespace verbena::tools::symm {

struct SymmPlan {
  std::string id;  // the unique id in hexadecimal digits
  unsigned rank = 0, count_ranks = 2;
  int gpu = 0;
  bool measures = true;  // false: checks only
  unsigned rounds = 11;  // samples of each figure
};

// Throws std::exception. Reports results line by line through the control channel (figures.h).
void run_rank(const SymmPlan& plan);

}  // namespace verbena::tools::symm
