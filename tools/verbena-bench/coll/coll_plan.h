// The arguments of one rank's process.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "common/clock.h"
#include "verbena-bench/shared/rank_identity.h"

namespace verbena::tools::coll {

struct CollPlan : bench::RankIdentity {
  std::string nccl_id;
  unsigned hosts = 1;           // with the same number of ranks each
  std::vector<uint64_t> sizes;  // bytes of a rank's tensor
  std::vector<std::string> types = {"bf16"};
  std::vector<std::string> operations = {"all_reduce"};
  std::vector<std::string> against;  // contenders in this process beside ours
  bool checks = true, measures = true;
  bool all_shapes = true;  // false: only the library's choice
  bool pdl = false;        // programmatic dependent launch
  unsigned repeats = 21;   // samples of each figure
  unsigned chain = 20;     // operations of the shorter graph
  unsigned delay_us = 0;   // pause in each kernel, before and after it lets the next kernel begin
  bool is_quick = false;   // measure slopes only
  uint64_t soak = 0;       // verified replays
  uint64_t random = 0;     // random calls
  uint64_t seed = 0;       // of them
  std::string library;     // libverbena_ops.so
  std::string nccl_library;
  uint32_t blocks = 128;      // maximum of a kernel
  uint64_t packet_bytes = 0;  // of the workspace for packets; 0: the library's default
  uint64_t hidden = 8192;     // elements of a row, of all_reduce_norm
  // Tokens per rank for dispatch and combine of a mixture of experts. If set, nothing else is measured.
  std::vector<uint32_t> moe_tokens;
  uint32_t moe_max_tokens = 0;  // of the exchange; 0: the tokens of the call
  uint32_t moe_experts = 256, moe_top_k = 8;
  uint32_t moe_row_bytes = 0, moe_scale_bytes = 0;  // of a dispatched row; 0: 2 * hidden, none
  std::string moe_grouping = "rank";
  uint32_t moe_alignment = 1;
  bool moe_windows = false;  // verbena_moe_options::in_windows
  double timeout_s = kStepTimeoutS;
};

// Throws std::exception. Reports line by line through the control channel (figures.h).
void run_rank(const CollPlan& plan);

}  // namespace verbena::tools::coll
