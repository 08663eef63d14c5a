#pragma once
#include <string>
#include <vector>

#include "common/output.h"
#include "verbena-bench/coll/coll_plan.h"

namespace verbena::tools::coll {

struct Options {
  int ranks = 0;  // 0: one for each GPU
  std::vector<std::string> against;
  std::string python = "python3";
  std::string calibrate;  // a tuning file
  OutputOptions output;
  CollPlan rank_plan;  // without what differs from rank to rank
  bool is_rank = false;
  std::string own_sizes;  // as it was given
};

struct ParsedOptions {
  Options options;
  int exit_status = -1;  // >= 0: exit with it
};
ParsedOptions parse_options(int argc, char** argv);

}  // namespace verbena::tools::coll
