#pragma once
#include <cstdint>
#include <string>

#include "verbena-bench/unpack/kernel_set.h"
#include "verbena-bench/unpack/memory.h"
#include "verbena-bench/unpack/test_case.h"
#include "verbena/unpack_abi.h"

namespace verbena::tools::unpack {

// The result of checking a run's buffers.
struct Finding {
  uint64_t wrong_bytes = 0;
  std::string where;  // a description of the first
};

// The memory of a case, filled as the plugin would fill it: queues in pinned host memory, bounce pages in GPU
// memory or pinned host memory, buffers between guard bytes in GPU memory. Kept from case to case.
class Workspace {
 public:
  Workspace(Gpu& gpu, KernelSet& kernels, double timeout_s);

  // Fills everything except the buffers.
  UnpackRun lay_out(const TestCase& test_case, uint64_t footprint_bytes);
  NetUnpackMeta* queues() { return queue_memory_; }
  // Pinned host memory through which host and kernel communicate during a run.
  Arena& exchange() { return exchange_; }

  void reset_buffers(const UnpackRun& run);
  // The counter of refused slots; reset_buffers sets it to 0.
  CUdeviceptr bad_counts() { return results_.reserve(kResultBytes) + kBadCountsOffsetBytes; }
  // Checks every byte of the buffers, and the refused slots.
  Finding check(const UnpackRun& run);

 private:
  static constexpr size_t kBadCountsOffsetBytes = 16;
  static constexpr size_t kResultBytes = 24;

  Gpu& gpu_;
  KernelSet& kernels_;
  double timeout_s_;
  NetUnpackMeta* queue_memory_ = nullptr;
  Arena queues_, host_bounce_, exchange_, gpu_bounce_, buffers_, results_;
};

}  // namespace verbena::tools::unpack
