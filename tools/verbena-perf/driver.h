#pragma once
#include "common/environment.h"
#include "verbena-perf/options.h"

#include <string>

namespace verbena::tools::perf {

class Report;

// One run of two workers, or of this host's worker with the other host's. Throws ToolError.
int run_once(const PerfOptions& options, Report& report, int argc, const char* const* argv);

// Starts both workers, or the one of this host, prints figures as they come, and returns the tool's exit
// status.
int run_driver(const PerfOptions& options, int argc, const char* const* argv);

// NCCL loads the libibverbs.so.1 that the loader finds first. Puts the one that the plugin would open in
// front.
void choose_same_verbs(Environment& environment, const std::string& plugin);

// One of the two processes: 0 starts each exchange, 1 answers and receives the bandwidth messages. Both
// report to the tool over kControlDescriptor, in lines of JSON with one of these members:
//   "device": what the plugin offers;  "phase": what begins;  "row": a size's figures;  "error": why it ends;
//   "done": it has closed everything.
int run_worker(const PerfOptions& options);

// Measures direct and staged messages (with several rails, also striped and whole ones), and merges the
// resulting settings into the tuning file `options.calibrate`. Returns the tool's exit status.
int run_calibration(const PerfOptions& options);

}  // namespace verbena::tools::perf
