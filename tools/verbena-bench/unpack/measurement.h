#pragma once
#include <cstdint>
#include <vector>

#include "common/clock.h"
#include "verbena-bench/unpack/workspace.h"

namespace verbena::tools::unpack {

struct MeasureOptions {
  uint64_t footprint_bytes = 268435456;  // minimum payload: more than the size of the GPU's L2 cache
  uint64_t volume_bytes = 1073741824;    // approximate payload of a timed launch
  uint32_t iterations = 10;              // timed launches; 0: only check the bytes
  uint32_t stages = 4;                   // per warp, for Mover::kBulk
  double timeout_s = kStepTimeoutS;
};

struct Figure {
  Mover mover{};
  double gbps = 0;  // payload of all blocks, median; 0 if nothing was timed
  double best_gbps = 0;
  double p99_gbps = 0;  // at the 99th percentile of the launches' times
  Finding finding;
};

// Measures a case with each mover, in this order, in the same memory.
std::vector<Figure> measure_case(Gpu& gpu, KernelSet& kernels, Workspace& workspace,
                                 const TestCase& test_case, const std::vector<Mover>& movers,
                                 const MeasureOptions& options);

}  // namespace verbena::tools::unpack
