// Random calls, each checked element by element. What ranks have to agree on (operation, type, size,
// algorithm, groups) comes from a seed that all have; what is each rank's own (where tensors lie, in place or
// not, how late it comes, eager or as a graph, on which stream) from a separate seed, so that no two ranks
// are alike.
#pragma once
#include <cstdint>

#include "common/gpu.h"
#include "verbena-coll/coll_plan.h"
#include "verbena-coll/ops_library.h"

namespace verbena::tools::coll {

// Two windows, at the same place on all ranks, for inputs and outputs.
struct RandomPlaces {
  CUdeviceptr inputs = 0, outputs = 0;
  uint64_t bytes = 0;  // of each
};

// plan.random steps from plan.seed; the number of wrong elements, the first of which are printed with the
// step that made them. Throws ToolError where a call fails.
uint64_t run_random_calls(const CollPlan& plan, const OpsLibrary& library, verbena_ops* ops, Gpu& gpu,
                          const RandomPlaces& places);

}  // namespace verbena::tools::coll
