// The functions of CUDA's driver that the copier calls, in the libcuda.so.1 that the application uses.
#pragma once

#include <string>

#include "abi/cuda.h"

namespace verbena::softverbs::copier {

using namespace ::verbena::cuda;  // NVIDIA's names

// clang-format off
#define COPIER_CUDA_NEEDED(X)                                                                               \
  X(cuInit) X(cuGetErrorName) X(cuDeviceGetCount) X(cuDeviceGet) X(cuDeviceGetUuid)                         \
  X(cuDeviceGetAttribute) X(cuDevicePrimaryCtxRetain) X(cuCtxSetCurrent) X(cuCtxGetStreamPriorityRange)     \
  X(cuStreamCreateWithPriority) X(cuStreamQuery) X(cuEventCreate) X(cuEventRecord) X(cuEventQuery)          \
  X(cuMemcpyAsync) X(cuMemcpy2DAsync_v2) X(cuMemAlloc_v2) X(cuMemFree_v2) X(cuMemHostAlloc)                 \
  X(cuMemHostRegister_v2) X(cuMemHostUnregister) X(cuMemHostGetDevicePointer_v2)                            \
  X(cuIpcOpenMemHandle_v2) X(cuIpcCloseMemHandle)
// Virtual memory management; cuMemImportFromShareableHandle is null unless all other functions were found.
#define COPIER_CUDA_MAPPING(X)                                                                              \
  X(cuMemImportFromShareableHandle) X(cuMemRelease) X(cuMemAddressReserve) X(cuMemAddressFree) X(cuMemMap)  \
  X(cuMemUnmap) X(cuMemSetAccess) X(cuMemCreate)
// Calls of the self-test; cuLaunchKernel is null unless all other functions were found.
#define COPIER_CUDA_KERNEL(X)                                                                               \
  X(cuLaunchKernel) X(cuCtxCreate_v2) X(cuCtxDestroy_v2) X(cuModuleLoadDataEx) X(cuModuleGetFunction)
// A pointer is null if the driver does not have the function.
#define COPIER_CUDA_OPTIONAL(X) X(cuMemcpyBatchAsync) X(cuStreamBatchMemOp_v2)
// clang-format on

struct Driver {
  COPIER_CUDA_NEEDED(VERBENA_CUDA_MEMBER)
  COPIER_CUDA_MAPPING(VERBENA_CUDA_MEMBER)
  COPIER_CUDA_KERNEL(VERBENA_CUDA_MEMBER)
  COPIER_CUDA_OPTIONAL(VERBENA_CUDA_MEMBER)

  // Loads and initialises CUDA. Returns false, with the reason in `why`, on failure.
  bool load(const char* path, std::string& why);
  // Returns a text such as "cuMemMap: CUDA_ERROR_INVALID_VALUE".
  std::string explain(const char* call, CUresult result) const;
};

}  // namespace verbena::softverbs::copier
