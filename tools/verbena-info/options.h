#pragma once
#include <string>

#include "common/clock.h"

namespace verbena::tools::info {

struct InfoOptions {
  std::string plugin;
  std::string nccl;
  std::string from;
  std::string topology, topology_xml;
  std::string explain;  // OPERATION:BYTES:RANKS
  std::string json;     // a file, or "-"
  bool check = false, self_test = false;
  bool parameters = false;
  bool all = false;  // advanced ones too
  bool verbose = false;
  double timeout_s = kStepTimeoutS;
  std::string child;        // the role of this process as a child of the tool; empty: it is the tool itself
  std::string probed_nccl;  // for the search of NCCL's libraries
};

}  // namespace verbena::tools::info
