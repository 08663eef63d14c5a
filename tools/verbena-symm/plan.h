// What one rank's process is told. Plain, as nvcc compiles what uses it.
#pragma once

#include <string>

namespace verbena::tools::symm {

struct RankPlan {
  std::string id;  // the unique id in hexadecimal digits
  unsigned rank = 0, count_ranks = 2;
  int gpu = 0;
  bool measures = true;  // false: checks only
  unsigned rounds = 11;  // samples of each figure
};

// Throws std::exception. Tells what it finds line by line through the control channel (figures.h).
void run_rank(const RankPlan& plan);

}  // namespace verbena::tools::symm
