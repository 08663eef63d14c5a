#pragma once
#include <string>
#include <vector>

#include "common/option_style.h"
#include "verbena-bench/unpack/latency.h"
#include "verbena-bench/unpack/live.h"
#include "verbena-bench/unpack/measurement.h"
#include "verbena-bench/unpack/test_case.h"

namespace verbena::tools::unpack {

struct UnpackOptions {
  Sweep sweep;
  bool targets = false;       // the cases with target figures instead of the sweep
  std::vector<Mover> movers;  // empty: all that the GPU and the options support
  MeasureOptions measure;
  LatencyOptions latency;
  bool measure_latency = false;
  LiveOptions live;
  std::vector<uint64_t> sizes_bytes;  // of a message; empty: the defaults of what is measured
  bool is_live = false;               // --live, instead of all others
  int gpu = 0;
  std::string nccl_kernel;
  OutputOptions output;
};

Parsed<UnpackOptions> parse_options(int argc, const char* const* argv);

}  // namespace verbena::tools::unpack
