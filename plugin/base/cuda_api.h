// The functions of libcuda.so.1 that the plugin uses, found at run time. Internal to base: other folders use
// cuda_driver.h.
#pragma once

#include "abi/cuda.h"

namespace verbena::base {

using namespace ::verbena::cuda;  // NVIDIA's names

// clang-format off
#define VERBENA_CUDA_FUNCTIONS(X)                                                                            \
  X(cuInit) X(cuGetErrorString) X(cuDeviceGetCount) X(cuDeviceGet) X(cuDeviceGetAttribute)                   \
  X(cuDevicePrimaryCtxRetain) X(cuDevicePrimaryCtxRelease_v2) X(cuCtxGetCurrent) X(cuCtxGetDevice)           \
  X(cuCtxPushCurrent_v2) X(cuCtxPopCurrent_v2) X(cuPointerGetAttribute) X(cuMemAlloc_v2) X(cuMemFree_v2)     \
  X(cuMemHostAlloc) X(cuMemFreeHost) X(cuMemHostGetDevicePointer_v2) X(cuMemsetD8Async)                      \
  X(cuMemcpyHtoDAsync_v2) X(cuStreamCreate) X(cuStreamSynchronize) X(cuStreamDestroy_v2)                     \
  X(cuThreadExchangeStreamCaptureMode)
// These functions are null if the driver lacks them.
#define VERBENA_OPTIONAL_CUDA_FUNCTIONS(X) \
  X(cuMemHostRegister_v2) X(cuMemHostUnregister) X(cuMemGetHandleForAddressRange) X(cuModuleLoadDataEx) \
  X(cuModuleGetFunction) X(cuLaunchKernel) X(cuMulticastCreate) X(cuMulticastAddDevice) X(cuMulticastBindMem) \
  X(cuMulticastUnbind) X(cuMulticastGetGranularity)
// Virtual memory management: maps memory at chosen addresses. All are null if the driver lacks one of them.
#define VERBENA_MAPPING_CUDA_FUNCTIONS(X)                                                                    \
  X(cuMemGetAllocationGranularity) X(cuMemAddressReserve) X(cuMemAddressFree) X(cuMemCreate) X(cuMemRelease) \
  X(cuMemMap) X(cuMemUnmap) X(cuMemSetAccess) X(cuMemExportToShareableHandle)                                \
  X(cuMemImportFromShareableHandle) X(cuMemRetainAllocationHandle)                                           \
  X(cuMemGetAllocationPropertiesFromHandle) X(cuMemGetAddressRange_v2) X(cuMemcpyDtoHAsync_v2)
// clang-format on

struct CudaApi {
  VERBENA_CUDA_FUNCTIONS(VERBENA_CUDA_MEMBER)
  VERBENA_OPTIONAL_CUDA_FUNCTIONS(VERBENA_CUDA_MEMBER)
  VERBENA_MAPPING_CUDA_FUNCTIONS(VERBENA_CUDA_MEMBER)

  bool can_map() const;  // all of VERBENA_MAPPING_CUDA_FUNCTIONS were found
};

// Returns the functions, loaded on the first call and kept for the life of the library; null without a usable
// driver. The application calls cuInit. Before that there is no current context, and every function here
// reports this.
const CudaApi* find_cuda();

// Returns the driver's description of a result.
const char* describe_cuda(CUresult result);

// While this object lives, calls of this thread do not invalidate stream captures of other threads.
class RelaxedCapture {
 public:
  explicit RelaxedCapture(const CudaApi& cuda);
  ~RelaxedCapture();
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  const CudaApi& cuda_;
  // The mode to set; after construction, the thread's previous mode.
  int mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
};

// While this object lives, the CUDA context that owns an allocation is current, so that any thread can use
// the allocation.
class OwningContext {
 public:
  OwningContext(const CudaApi& cuda, CUdeviceptr address);
  ~OwningContext();
  OwningContext(const OwningContext&) = delete;
  OwningContext& operator=(const OwningContext&) = delete;
  // Returns false if the application has destroyed the context, and the allocation with it.
  explicit operator bool() const { return pushed_; }

 private:
  const CudaApi& cuda_;
  bool pushed_ = false;
};

}  // namespace verbena::base
