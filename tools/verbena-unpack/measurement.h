#pragma once
#include <cstdint>
#include <vector>

#include "common/duration.h"
#include "verbena-unpack/workspace.h"

namespace verbena::tools::unpack {

struct MeasureOptions {
  uint64_t footprint_bytes = 268435456;  // of payload, at least: more than the GPU's L2 cache
  uint64_t volume_bytes = 1073741824;    // of payload a timed launch moves, about
  uint32_t iterations = 10;              // timed launches; 0: only check the bytes
  uint32_t stages = 4;                   // of the bulk way, a warp
  double timeout_s = kStepTimeoutS;
};

struct Figure {
  Mover mover{};
  double gbps = 0;  // payload of all blocks, median; 0 when nothing was timed
  double best_gbps = 0;
  double p99_gbps = 0;  // at the 99th percentile of the launches' times
  Finding finding;
};

// A case by each mover, in this order, out of the same memory.
std::vector<Figure> measure_case(Gpu& gpu, KernelSet& kernels, Workspace& workspace,
                                 const TestCase& test_case, const std::vector<Mover>& movers,
                                 const MeasureOptions& options);

}  // namespace verbena::tools::unpack
