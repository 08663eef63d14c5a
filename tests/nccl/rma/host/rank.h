// One rank of a run: a process that drives a table of the plugin as NCCL's proxy does, with a kernel of its
// own that asks for puts, signals and gets and checks what others put here.
#pragma once

#include <cstdint>
#include <string>

#include "nccl/rma/host/meeting.h"

namespace verbena::nccl::testing {

enum class Work : uint8_t {
  kCount,    // messages from every rank to every rank; every signal counted, every payload checked
  kLatency,  // between ranks 0 and 1, one at a time
  kRate,     // from rank 0 to rank 1, as fast as it goes
};

struct RunOptions {
  Work work = Work::kCount;
  std::string plugin;
  std::string table = "ncclRmaPlugin_v16";
  uint32_t ranks = 2, contexts = 4, rails = 1, rounds = 1;
  uint64_t messages = 10'000;  // of each rank, in a round
  uint32_t bytes = 1024;       // the longest payload
  int slow = -1, killed = -1;  // ranks; -1: none
  double seconds = 300;        // for the run
  bool has_gpu_words = false;  // signals are counted in GPU memory
  bool is_verbose = false;
};

// The figures of kLatency (one way, microseconds) and kRate (a second, in `rate`).
struct Figures {
  double median_us = 0, p99_us = 0, rate = 0;
};

// To be called in a process of its own. What went wrong is in the rank's report.
void run_rank(const RunOptions& options, uint32_t rank, Meeting& meeting, Figures* figures);

}  // namespace verbena::nccl::testing
