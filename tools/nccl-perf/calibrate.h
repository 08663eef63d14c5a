#pragma once
#include <functional>
#include <string>
#include <vector>

#include "nccl-perf/calibration_plan.h"
#include "nccl-perf/nccl_log.h"

namespace verbena::tools::nccl {

// The outcome of one run of a variant.
struct StepResult {
  int status = 0;
  std::vector<Row> rows;
  NcclLog log;  // of rank 0
  std::string gpu;
};

using RunVariant = std::function<StepResult(const Variant&)>;

// Measures every step of the calibration plan `options.rounds` times, for at most `options.budget_s`, and
// merges the costs into the tuning file `options.calibrate`. Returns the tool's exit status. Throws ToolError
// if the file exists and is not a tuning file, if it cannot be written, or if NCCL did not use the plugin.
int run_calibration(const NcclPerfOptions& options, int ranks, const std::string& nccl_version,
                    const RunVariant& run);

}  // namespace verbena::tools::nccl
