// Dispatch and combine of mixture of experts between the ranks: checked against routing that every rank draws
// for all, then measured by the tool's clock.
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "common/gpu.h"
#include "verbena-coll/coll_plan.h"
#include "verbena-coll/ops_library.h"

namespace verbena::tools::coll {

// What a rank gives for it.
struct MoeGround {
  const CollPlan& plan;
  const OpsLibrary& library;
  Gpu& gpu;
  verbena_context* context;
  const verbena_team* team;
  // Microseconds of what it launches, which all ranks begin together.
  std::function<double(const std::function<void()>& launch)> time_us;
  // The largest of all ranks, for each.
  std::function<std::vector<double>(std::vector<double> values)> agree;
};

// For each of plan.moe_tokens; reports line by line. Throws ToolError where a call fails or data is wrong.
void run_moe(const MoeGround& ground);

}  // namespace verbena::tools::coll
