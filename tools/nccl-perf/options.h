#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/option_style.h"
#include "nccl-perf/collective.h"

namespace verbena::tools::nccl {

struct NcclPerfOptions {
  std::string plugin;  // empty: ../lib beside the tool, unless NCCL_NET_PLUGIN is set
  std::string nccl;
  bool list_nccl = false;
  int ranks = 0;  // 0: one per GPU, two on a single GPU
  std::vector<Operation> operations;
  std::vector<uint64_t> sizes_bytes;
  uint64_t iterations = 20;
  uint64_t warmup = 5;
  bool verify = true;
  double soak_s = 0;   // 0: run the timed iterations once
  std::string unpack;  // "", "0", "1" or "both"
  std::string threshold;
  std::string protocol;
  std::string algorithm;
  int rails = 0;  // 0: from the environment
  bool join_rails = false;
  bool graph = false;
  int communicators = 1;             // number of communicators that run each operation at the same time
  std::vector<std::string> against;  // the other variants
  int rounds = 1;
  std::string calibrate;  // the tuning file to write
  double budget_s = 600;
  double timeout_s = kStepTimeoutS;
  OutputOptions output;
  std::string out_file;
  std::string log_folder;  // empty: a temporary one, kept only if a run fails
  bool verbose = false;
  // Set in the processes that the tool starts.
  int child_rank = -1;
  int child_ranks = 0;
  std::string child_nccl;
  std::vector<std::string> child_operations;  // if the variant has other operations
  uint64_t child_end_bytes = 0;
  std::string probe_nccl;
};

Parsed<NcclPerfOptions> parse_options(int argc, const char* const* argv);

}  // namespace verbena::tools::nccl
