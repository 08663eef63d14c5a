#pragma once
#include <string>

#include "abi/cuda.h"

namespace verbena::tools {

using namespace ::verbena::cuda;  // NVIDIA's names

// clang-format off
#define VERBENA_TOOLS_CUDA(X)                                                                                \
  X(cuInit) X(cuDriverGetVersion) X(cuGetErrorName) X(cuGetErrorString) X(cuDeviceGetCount) X(cuDeviceGet)   \
  X(cuDeviceGetName) X(cuDeviceGetPCIBusId) X(cuDeviceGetAttribute) X(cuDevicePrimaryCtxRetain)              \
  X(cuDevicePrimaryCtxRelease_v2) X(cuCtxSetCurrent) X(cuMemAlloc_v2) X(cuMemFree_v2) X(cuMemHostAlloc)      \
  X(cuMemFreeHost) X(cuMemHostGetDevicePointer_v2) X(cuMemGetInfo_v2) X(cuMemsetD32Async)                    \
  X(cuMemcpyAsync) X(cuMemcpyDtoHAsync_v2) X(cuMemcpyHtoDAsync_v2) X(cuStreamCreate) X(cuStreamQuery)                         \
  X(cuStreamBeginCapture_v2) X(cuStreamEndCapture) X(cuGraphInstantiateWithFlags) X(cuGraphLaunch)           \
  X(cuGraphExecDestroy) X(cuGraphDestroy) X(cuEventCreate) X(cuEventRecord) X(cuEventElapsedTime)            \
  X(cuModuleLoadDataEx) X(cuModuleGetFunction) X(cuFuncSetAttribute) X(cuLaunchKernel)
// clang-format on

// The functions of libcuda.so.1, loaded at run time: the tools build and start without CUDA.
struct CudaDriver {
  VERBENA_TOOLS_CUDA(VERBENA_CUDA_MEMBER)
  VERBENA_CUDA_MEMBER(cuMemGetHandleForAddressRange)  // null if the driver has none

  // Throws ToolError with the call and the driver's reason.
  void check(CUresult status, const char* call) const;
};

// Null, with the reason in `why`, if there is no driver library or it lacks a function.
const CudaDriver* load_cuda_driver(std::string& why);

// The number of usable devices after cuInit; 0, with the reason in `why`, if there is none.
int count_cuda_devices(std::string& why);
// The same; if there is none, prints that `tool` needs `what`, and why there is none.
int require_cuda_devices(const char* tool, const char* what);

}  // namespace verbena::tools
