#pragma once
#include "verbena-perf/options.h"

namespace verbena::tools::perf {

// One of the two processes: 0 starts each exchange, 1 answers and receives the bulk. Both report to the tool
// over kControlDescriptor, in lines of JSON with one of these members:
//   "device": what the plugin offers;  "phase": what begins;  "row": a size's figures;  "error": why it ends;
//   "done": it has closed everything.
int run_worker(const Options& options);

}  // namespace verbena::tools::perf
