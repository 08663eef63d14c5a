#pragma once
#include <span>

#include "common/gpu.h"
#include "common/nccl_library.h"
#include "nccl-perf/collective.h"
#include "nccl-perf/options.h"
#include "nccl-perf/soak.h"

namespace verbena::tools::nccl {

struct Measured {
  double time_us = 0;  // median of the timed iterations of this rank
  double p99_us = 0;
  uint64_t wrong_elements = 0;
  Soak soak;  // empty unless requested
};

// Runs one rank's share of the operations on its communicator.
class Measurement {
 public:
  Measurement(const NcclLibrary& nccl, NcclComm comm, Gpu& gpu, const NcclPerfOptions& options);

  // All ranks call it for the same operations and sizes in the same order. Checks the results after the
  // warm-up and again after the timed iterations, each time with buffers that were poisoned before.
  Measured measure(Operation operation, uint64_t size_bytes);

 private:
  void enqueue(Operation operation, const Shape& shape);
  void enqueue_all_to_all(const Shape& shape);
  void prepare(const Shape& shape);
  uint64_t count_wrong(Operation operation, const Shape& shape);
  // Returns true if any rank has run long enough. All ranks must call it, and get the same answer.
  bool agree_to_end(bool is_enough);
  void run_timed(Operation operation, const Shape& shape);
  void wait();
  void check(NcclStatus status, const char* call) const { nccl_.check(status, call); }

  const NcclLibrary& nccl_;
  NcclComm comm_;
  Gpu& gpu_;
  const NcclPerfOptions& options_;
  uint32_t rank_;
  uint32_t ranks_;
  CUdeviceptr send_ = 0;
  CUdeviceptr receive_ = 0;
  CUdeviceptr votes_ = 0;        // for a soak: the number of ranks that have soaked long enough
  std::span<uint32_t> staging_;  // pinned memory in which the host fills and checks data
  uint32_t salt_ = 0;
};

}  // namespace verbena::tools::nccl
