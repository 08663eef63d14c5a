// The host, and the environment that is of interest.
#pragma once
#include "common/environment.h"
#include "verbena-info/document.h"

namespace verbena::tools::info {

Json describe_tool();
Json describe_host();
// For NCCL's topology file: {"node", "cpumap"} of each.
Json list_numa_nodes();
// Variables whose names begin with NCCL_, VERBENA_ or SOFTVERBS_, and those that choose libraries and GPUs.
Json list_environment(const Environment& environment);

}  // namespace verbena::tools::info
