// Makes random calls and checks each element of their results. Properties that must be equal on all ranks
// (operation, type, size, algorithm, grouping) come from a common seed. Properties that may differ
// (alignment, in place or not, delay, eager or graph, stream) come from a separate seed for each rank.
#pragma once
#include <cstdint>
#include <random>

#include "common/gpu.h"
#include "verbena-bench/coll/coll_plan.h"
#include "verbena-bench/coll/ops_library.h"

namespace verbena::tools::coll {

using Random = std::mt19937_64;
inline uint64_t draw_number(Random& random, uint64_t first, uint64_t last) {
  return std::uniform_int_distribution<uint64_t>(first, last)(random);
}

inline constexpr uint64_t kMargin = 256;  // bytes around an output that nobody writes
inline constexpr unsigned char kUntouched = 0x5a;

// Two windows with the same offset on all ranks, for inputs and outputs.
struct RandomPlaces {
  CUdeviceptr inputs = 0, outputs = 0;
  uint64_t bytes = 0;  // of each
};

// Makes plan.random steps from plan.seed, and returns the number of wrong elements. Prints the first wrong
// elements with their step. Throws ToolError if a call fails.
uint64_t run_random_calls(const CollPlan& plan, const OpsLibrary& library, verbena_ops* ops, Gpu& gpu,
                          const RandomPlaces& places);

}  // namespace verbena::tools::coll
