#pragma once
#include <string>
#include <vector>

#include "common/output.h"
#include "verbena-bench/unpack/latency.h"
#include "verbena-bench/unpack/live.h"
#include "verbena-bench/unpack/measurement.h"
#include "verbena-bench/unpack/test_case.h"

namespace verbena::tools::unpack {

struct Options {
  Sweep sweep;
  bool targets = false;       // the cases with target figures instead of the sweep
  std::vector<Mover> movers;  // empty: all that the GPU and the options support
  MeasureOptions measure;
  LatencyOptions latency;
  bool measure_latency = false;
  LiveOptions live;
  std::vector<uint64_t> live_sizes_bytes;
  bool is_live = false;  // --live, instead of all others
  int gpu = 0;
  std::string nccl_kernel;
  OutputOptions output;
};

struct ParsedOptions {
  Options options;
  int exit_status = -1;  // >= 0: exit with it
};

ParsedOptions parse_options(int argc, const char* const* argv);

}  // namespace verbena::tools::unpack
