// The arguments of one rank's process. Plain types, because nvcc compiles its users.
#pragma once

#include "verbena-bench/shared/rank_identity.h"

namespace verbena::tools::symm {

struct SymmPlan : bench::RankIdentity {
  unsigned rounds = 11;  // samples of each figure; 0: checks only
};

// Throws std::exception. Reports results line by line through the control channel (shared/figures.h).
void run_rank(const SymmPlan& plan);

}  // namespace verbena::tools::symm
