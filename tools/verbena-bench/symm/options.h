#pragma once
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/output.h"
#include "verbena-bench/symm/symm_plan.h"

namespace verbena::tools::symm {

struct Options {
  int ranks = 0;  // 0: one per GPU, two on a single GPU
  std::vector<std::string> backends = {"verbena"};
  std::string path;  // empty: VERBENA_SYMM_PATH decides
  bool checks_only = false;
  unsigned repeats = 11;
  double timeout_s = kStepTimeoutS;  // without a line from any rank
  OutputOptions output;
  SymmPlan rank_plan;  // of a child
  bool is_rank = false;
};

struct ParsedOptions {
  Options options;
  int exit_status = -1;  // >= 0: exit with it
};
ParsedOptions parse_options(int argc, char** argv);

}  // namespace verbena::tools::symm
