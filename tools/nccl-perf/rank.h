#pragma once
#include "nccl-perf/options.h"

namespace verbena::tools::nccl {

// One rank, in a process of its own, on the GPU of its number. Speaks lines of JSON over kControlDescriptor:
//   out: "gpu": its name;  "id": NCCL's unique id (rank 0);  "phase": what begins;  "row": one size of one
//        operation;  "error" (and "hung"): why it ends;  "done"
//   in:  "id"
int run_rank(const Options& options);

}  // namespace verbena::tools::nccl
