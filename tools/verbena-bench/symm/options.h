#pragma once
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/option_style.h"

namespace verbena::tools::symm {

struct SymmOptions {
  int ranks = 0;  // 0: one per GPU, two on a single GPU
  std::vector<std::string> backends = {"verbena"};
  std::string path;  // empty: VERBENA_SYMM_PATH decides
  bool checks_only = false;
  unsigned repeats = 11;
  double timeout_s = kStepTimeoutS;  // without a line from any rank
  OutputOptions output;
};

Parsed<SymmOptions> parse_options(int argc, const char* const* argv);

}  // namespace verbena::tools::symm
