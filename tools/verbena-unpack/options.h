#pragma once
#include <string>
#include <vector>

#include "common/output.h"
#include "verbena-unpack/latency.h"
#include "verbena-unpack/live.h"
#include "verbena-unpack/measurement.h"
#include "verbena-unpack/test_case.h"

namespace verbena::tools::unpack {

struct Options {
  Sweep sweep;
  bool targets = false;       // the project's cases instead of the sweep
  std::vector<Mover> movers;  // empty: all that the GPU and the options have
  MeasureOptions measure;
  LatencyOptions latency;
  bool measure_latency = false;
  LiveOptions live;
  std::vector<uint64_t> live_sizes_bytes;
  bool is_live = false;  // instead of anything else
  int gpu = 0;
  std::string nccl_source;
  OutputOptions output;
  bool compile_only = false;  // NCCL's kernel, without a GPU
};

struct ParsedOptions {
  Options options;
  int exit_status = -1;  // >= 0: leave with it
};

ParsedOptions parse_options(int argc, const char* const* argv);

}  // namespace verbena::tools::unpack
