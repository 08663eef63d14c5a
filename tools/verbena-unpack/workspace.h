#pragma once
#include <cstdint>
#include <string>

#include "verbena-unpack/kernel_set.h"
#include "verbena-unpack/memory.h"
#include "verbena-unpack/test_case.h"
#include "verbena/unpack_abi.h"

namespace verbena::tools::unpack {

// What checking has found in a run's buffers.
struct Finding {
  uint64_t wrong_bytes = 0;
  std::string where;  // the first of them, in words
};

// The memory of a case, filled as the plugin would: queues in pinned host memory, bounce pages in GPU memory
// or in pinned host memory, buffers between guard bytes in GPU memory. Kept from case to case.
class Workspace {
 public:
  Workspace(Gpu& gpu, KernelSet& kernels, double timeout_s);

  // Fills all but the buffers.
  UnpackRun lay_out(const TestCase& test_case, uint64_t footprint_bytes);
  NetUnpackMeta* queues() { return queue_memory_; }
  // Pinned host memory by which host and kernel talk during a run.
  HostArena& exchange() { return exchange_; }

  void reset_buffers(const UnpackRun& run);
  // Where kernels count the slots that they refuse; set to 0 by reset_buffers.
  CudaAddress bad_counts() { return results_.reserve(kResultBytes) + kBadCountsOffsetBytes; }
  // Every byte of the buffers, and the refused slots.
  Finding check(const UnpackRun& run);

 private:
  static constexpr size_t kBadCountsOffsetBytes = 16;
  static constexpr size_t kResultBytes = 24;

  Gpu& gpu_;
  KernelSet& kernels_;
  double timeout_s_;
  NetUnpackMeta* queue_memory_ = nullptr;
  HostArena queues_, host_bounce_, exchange_;
  GpuArena gpu_bounce_, buffers_, results_;
};

}  // namespace verbena::tools::unpack
