#pragma once
#include <string>
#include <vector>

#include "common/option_style.h"
#include "verbena-bench/coll/coll_plan.h"

namespace verbena::tools::coll {

struct CollOptions {
  int ranks = 0;  // 0: one for each GPU
  std::vector<std::string> against;
  std::string python = "python3";
  std::string calibrate;  // a tuning file
  OutputOptions output;
  CollPlan rank_plan;    // without what differs from rank to rank
  bool is_rank = false;  // a process of this tool
};

Parsed<CollOptions> parse_options(int argc, const char* const* argv);

}  // namespace verbena::tools::coll
