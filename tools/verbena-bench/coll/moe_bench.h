// Checks and measures dispatch and combine of a mixture of experts. Every rank computes the random routes of
// all ranks, so that each can check its result.
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "common/gpu.h"
#include "verbena-bench/coll/coll_plan.h"
#include "verbena-bench/coll/ops_library.h"

namespace verbena::tools::coll {

// The functions that a rank provides.
struct MoeGround {
  const CollPlan& plan;
  const OpsLibrary& library;
  Gpu& gpu;
  verbena_context* context;
  const verbena_team* team;
  // Measures the microseconds of launched work, which all ranks begin together.
  std::function<double(const std::function<void()>& launch)> time_us;
  // Returns the maximum over all ranks, for each value.
  std::function<std::vector<double>(std::vector<double> values)> agree;
};

// Runs the benchmark for each of plan.moe_tokens, and reports line by line. Throws ToolError if a call fails
// or data is wrong.
void run_moe(const MoeGround& ground);

// Makes this number of dispatches and combines of exchanges whose shapes, groupings and routes are drawn from
// plan.seed, on ranks with different delays; a third of the rounds replay a graph. Checks and reports like
// run_moe().
void run_random_moe(const MoeGround& ground, uint64_t rounds);

}  // namespace verbena::tools::coll
