// What a latency kernel works on: one connection whose slots the host publishes one after the other. Host and
// GPU, as unpack_run.h.
#pragma once
#include "verbena-unpack/unpack_run.h"

namespace verbena::tools::unpack {

// Of one message: when its count was seen, and when its last byte was stored. The clock's steps may be as
// long as what is measured; the multiprocessor's cycles are not.
struct LatencySample {
  uint64_t begin_ns, end_ns;
  uint64_t begin_cycles, end_cycles;
};

struct LatencyRun {
  UnpackRun run;
  void* samples = nullptr;  // a LatencySample a message
  void* done = nullptr;     // uint64_t: messages finished
  uint64_t messages = 0;
  uint64_t timeout_ns = 0;  // of any one wait; then the kernel ends early
};

}  // namespace verbena::tools::unpack
