#pragma once

#include "abi/cuda.h"

// The calls of CUDA's driver that the device needs, from the libcuda.so.1 that the application has loaded.
// Nothing here loads or initialises CUDA.
namespace verbena::softverbs::cuda {

using namespace ::verbena::cuda;  // NVIDIA's names

// clang-format off
#define SOFTVERBS_CUDA_NEEDED(X)                                                                             \
  X(cuPointerGetAttributes) X(cuCtxGetCurrent) X(cuCtxSetCurrent) X(cuCtxGetDevice)                          \
  X(cuCtxGetStreamPriorityRange) X(cuDevicePrimaryCtxRetain) X(cuDeviceGetUuid)                              \
  X(cuStreamCreateWithPriority) X(cuEventCreate) X(cuEventRecord) X(cuEventQuery) X(cuMemcpyAsync)           \
  X(cuMemHostRegister_v2) X(cuThreadExchangeStreamCaptureMode) X(cuIpcGetMemHandle)                          \
  X(cuIpcOpenMemHandle_v2) X(cuIpcCloseMemHandle)
// Virtual memory management; cuMemRetainAllocationHandle is null unless all others are there.
#define SOFTVERBS_CUDA_MAPPING(X)                                                                            \
  X(cuMemExportToShareableHandle) X(cuMemImportFromShareableHandle) X(cuMemRelease) X(cuMemAddressReserve)   \
  X(cuMemAddressFree) X(cuMemMap) X(cuMemUnmap) X(cuMemSetAccess)
// Null where the driver has none.
#define SOFTVERBS_CUDA_OPTIONAL(X)                                                                           \
  X(cuCtxCreate_v2) X(cuMemcpyBatchAsync) X(cuMemRetainAllocationHandle) X(cuStreamBatchMemOp_v2)            \
  X(cuMemHostGetDevicePointer_v2)
// clang-format on

struct Driver {
  SOFTVERBS_CUDA_NEEDED(VERBENA_CUDA_MEMBER)
  SOFTVERBS_CUDA_MAPPING(VERBENA_CUDA_MEMBER)
  SOFTVERBS_CUDA_OPTIONAL(VERBENA_CUDA_MEMBER)
};

// nullptr while the application has not loaded CUDA.
const Driver* find_driver();

// Makes a context current on a thread of ours. It stays current until the next call.
void enter(const Driver& driver, CUcontext context);

// Makes a context current on a thread of the application for a scope. Calls in the scope are allowed even
// while another thread of the process captures a stream.
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

// exit() shuts CUDA down while our threads still run. Our threads therefore call CUDA only within a Use; a
// Use that begins after the process has started to end is refused.
class Use {
 public:
  Use();
  ~Use();
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;
  // Whether CUDA may be called.
  explicit operator bool() const { return is_allowed_; }

  // Registers an exit handler that refuses new uses and waits a short time for those that have begun. Call it
  // after CUDA is initialised: exit() runs the latest handler first, so ours runs before CUDA's.
  static void refuse_at_exit();
  // For a forked child, in which those threads do not exist.
  static void forget_all();

 private:
  bool is_allowed_;
};

}  // namespace verbena::softverbs::cuda
