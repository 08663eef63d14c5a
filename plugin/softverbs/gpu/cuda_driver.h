// The functions of CUDA's driver that softverbs calls in the application's process, in the libcuda.so.1 that
// the application has loaded. These functions find out which memory is GPU memory, and how another process
// can map this memory. Only calls that register memory use these functions; the copier makes the copies.
// Nothing here loads or initialises CUDA.
#pragma once

#include "abi/cuda.h"

namespace verbena::softverbs::cuda {

using namespace ::verbena::cuda;  // NVIDIA's names

// clang-format off
#define SOFTVERBS_CUDA_NEEDED(X)                                                                             \
  X(cuPointerGetAttributes) X(cuCtxGetCurrent) X(cuCtxSetCurrent) X(cuCtxGetDevice) X(cuDeviceGetUuid)       \
  X(cuThreadExchangeStreamCaptureMode) X(cuIpcGetMemHandle) X(cuMemAlloc_v2) X(cuMemFree_v2)
// Virtual memory management; cuMemRetainAllocationHandle is null unless all other functions were found.
#define SOFTVERBS_CUDA_MAPPING(X)                                                                            \
  X(cuMemExportToShareableHandle) X(cuMemRelease) X(cuMemRetainAllocationHandle) X(cuMemCreate)               \
  X(cuMemGetAddressRange_v2)
// clang-format on

struct Driver {
  SOFTVERBS_CUDA_NEEDED(VERBENA_CUDA_MEMBER)
  SOFTVERBS_CUDA_MAPPING(VERBENA_CUDA_MEMBER)
};

// Returns nullptr if the application has not loaded CUDA.
const Driver* find_driver();

// Makes a context current on a thread of the application for a scope; null keeps the current context. Within
// the scope, calls are allowed even while another thread of the process captures a stream.
class Scope {
 public:
  Scope(const Driver& driver, CUcontext context);
  ~Scope();
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

 private:
  const Driver& driver_;
  CUcontext before_ = nullptr;
  int capture_mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
};

}  // namespace verbena::softverbs::cuda
