#pragma once
#include "verbena-perf/options.h"

namespace verbena::tools::perf {

class Report;

// One run of two workers, or of this host's one with the server's. Throws ToolError.
int run_once(const Options& options, Report& report, int argc, const char* const* argv);

// Starts the two workers, or the one of this host, prints their figures as they come, and returns the tool's
// exit status.
int run_driver(const Options& options, int argc, const char* const* argv);

}  // namespace verbena::tools::perf
