#pragma once
#include <cstdint>
#include <vector>

#include "common/clock.h"
#include "verbena-bench/unpack/workspace.h"

namespace verbena::tools::unpack {

struct LatencyOptions {
  uint64_t message_bytes = 4096;
  uint64_t messages = 2000;
  uint32_t stages = 4;
  double timeout_s = kStepTimeoutS;
};

struct LatencyFigure {
  Mover mover{};
  uint32_t threads = 0;
  BouncePlace bounce{};
  uint64_t message_bytes = 0;
  // Times on the GPU, from reading the new count to storing the last byte.
  double min_us = 0, median_us = 0, p90_us = 0, p99_us = 0;
  // The same time measured by the GPU's nanosecond clock, whose steps may be long.
  double clock_median_us = 0;
  // The time on the host, from storing the count to reading the answer.
  double host_median_us = 0;
  Finding finding;
};

// Measures with one block, which waits for messages that this thread publishes one by one.
LatencyFigure measure_latency(Gpu& gpu, KernelSet& kernels, Workspace& workspace, Mover mover,
                              uint32_t threads, BouncePlace bounce, const LatencyOptions& options);

// Summarises the samples of a run, without the first ones, during which caches and clocks settle.
void summarize_samples(const std::vector<LatencySample>& samples, LatencyFigure& figure);

}  // namespace verbena::tools::unpack
