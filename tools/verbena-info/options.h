#pragma once
#include <string>

#include "common/duration.h"

namespace verbena::tools::info {

struct Options {
  std::string plugin;
  std::string nccl;
  std::string from;
  std::string topology, topology_xml;
  std::string json;  // a file, or "-"
  bool check = false;
  bool parameters = false;
  bool verbose = false;
  double timeout_s = kStepTimeoutS;
  std::string child;        // what this process does for another one of ours; empty: it is the tool
  std::string probed_nccl;  // of NCCL's search

  int exit_status = -1;  // >= 0: leave with it, all is said
};

Options parse_options(int argc, const char* const* argv);

}  // namespace verbena::tools::info
