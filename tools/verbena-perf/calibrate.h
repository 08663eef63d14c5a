#pragma once
#include "verbena-perf/options.h"

namespace verbena::tools::perf {

// Measures direct and staged messages, and with several rails messages in pieces and whole, and merges what
// follows into the tuning file `options.calibrate`. Returns the tool's exit status.
int run_calibration(const Options& options);

}  // namespace verbena::tools::perf
