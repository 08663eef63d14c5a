#pragma once
#include <string>
#include <vector>

#include "common/duration.h"
#include "common/output.h"
#include "verbena-symm/plan.h"

namespace verbena::tools::symm {

struct Options {
  int ranks = 0;  // 0: as many as there are GPUs, two on a single one
  std::vector<std::string> backends = {"verbena"};
  std::string path;  // empty: as VERBENA_SYMM_PATH says
  bool checks_only = false;
  unsigned repeats = 11;
  double timeout_s = kStepTimeoutS;  // without a word from any rank
  OutputOptions output;
  RankPlan rank_plan;  // of a child
  bool is_rank = false;
};

struct ParsedOptions {
  Options options;
  int exit_status = -1;  // >= 0: leave with it
};
ParsedOptions parse_options(int argc, char** argv);

}  // namespace verbena::tools::symm
