#pragma once
#include "verbena-perf/options.h"

namespace verbena::tools::perf {

// Starts the two workers, or the one of this host, prints their figures as they come, and returns the tool's
// exit status.
int run_driver(Options options, int argc, const char* const* argv);

}  // namespace verbena::tools::perf
