#pragma once
#include <functional>

#include "common/gpu.h"
#include "nccl-perf/collective.h"
#include "nccl-perf/kernels.h"
#include "nccl-perf/nccl_library.h"
#include "nccl-perf/options.h"
#include "nccl-perf/soak.h"

namespace verbena::tools::nccl {

struct Measured {
  double time_us = 0;  // median of the timed iterations of this rank
  double p99_us = 0;
  uint64_t wrong_elements = 0;
  Soak soak;  // empty unless one was asked for
};

// Runs one rank's share of the operations on its communicator.
class Measurement {
 public:
  Measurement(const NcclLibrary& nccl, NcclComm comm, Gpu& gpu, const Kernels& kernels,
              const Options& options);

  // All ranks call it for the same operations and sizes in the same order. Results are checked after the
  // warm-up and again after the timed iterations, each time from poisoned buffers.
  Measured measure(Operation operation, uint64_t size_bytes);

 private:
  void enqueue(Operation operation, const Shape& shape);
  void enqueue_all_to_all(const Shape& shape);
  void prepare(const Shape& shape);
  uint64_t count_wrong(Operation operation, const Shape& shape);
  // Whether any rank has soaked for long enough; all ranks call it and get the same answer.
  bool agree_to_end(bool is_enough);
  void run_timed(Operation operation, const Shape& shape);
  void wait();
  void check(NcclStatus status, const char* call) const { nccl_.check(status, call); }

  const NcclLibrary& nccl_;
  NcclComm comm_;
  Gpu& gpu_;
  const Kernels& kernels_;
  const Options& options_;
  uint32_t rank_;
  uint32_t ranks_;
  CudaAddress send_ = 0;
  CudaAddress receive_ = 0;
  CudaAddress wrong_ = 0;
  CudaAddress votes_ = 0;  // of a soak: ranks for which it has lasted long enough
  uint32_t salt_ = 0;
};

// Proves on this GPU that the kernels compute what element.h says and that the check finds one wrong element;
// throws otherwise.
void check_kernels(Gpu& gpu, const Kernels& kernels, double timeout_s);

}  // namespace verbena::tools::nccl
