// The part of CUDA's driver API that Verbena calls, under NVIDIA's names, so that a search finds them: types,
// values, and the prototype of each function as the type PFN_<name>. Written from NVIDIA's reference; the
// build needs no CUDA header. It lies below all layers: softverbs, base and the tools each list the
// functions that they use,
//   #define FUNCTIONS(X) X(cuInit) X(cuDeviceGet)
//   struct Driver { FUNCTIONS(VERBENA_CUDA_MEMBER) };
// and find them in libcuda.so.1 at run time.
#pragma once

#include <cstddef>

namespace verbena::cuda {

using CUresult = int;
using CUdevice = int;
using CUdeviceptr = unsigned long long;
using CUmemGenericAllocationHandle = unsigned long long;
using CUcontext = struct CUctx_st*;
using CUstream = struct CUstream_st*;
using CUevent = struct CUevent_st*;
using CUmodule = struct CUmod_st*;
using CUfunction = struct CUfunc_st*;
using CUgraph = struct CUgraph_st*;
using CUgraphExec = struct CUgraphExec_st*;

struct CUuuid {
  unsigned char bytes[16];
};
struct CUipcMemHandle {
  unsigned char reserved[64];
};
struct CUmemLocation {
  int type, id;
};
struct CUmemAllocationProp {
  int type;
  int requestedHandleTypes;
  CUmemLocation location;
  void* win32HandleMetaData;
  struct {
    unsigned char compressionType;
    unsigned char gpuDirectRDMACapable;
    unsigned short usage;
    unsigned char reserved[4];
  } allocFlags;
};
static_assert(sizeof(CUmemAllocationProp) == 32);
struct CUmemAccessDesc {
  CUmemLocation location;
  int flags;
};
static_assert(sizeof(CUmemAccessDesc) == 12);
struct CUmemcpyAttributes {
  int srcAccessOrder;
  CUmemLocation srcLocHint, dstLocHint;
  unsigned flags;
};

// The variant of the union that writes a value.
struct CUstreamBatchMemOpParams {
  int operation;
  CUdeviceptr address;
  unsigned long long value64;
  unsigned flags;
  CUdeviceptr alias;
  unsigned long long padding;
};
static_assert(sizeof(CUstreamBatchMemOpParams) == 48);

// With CU_MEMORYTYPE_UNIFIED the driver recognises memory by its address, and reads only srcDevice and
// dstDevice.
struct CUDA_MEMCPY2D {
  size_t srcXInBytes, srcY;
  int srcMemoryType;
  const void* srcHost;
  CUdeviceptr srcDevice;
  void* srcArray;
  size_t srcPitch;
  size_t dstXInBytes, dstY;
  int dstMemoryType;
  void* dstHost;
  CUdeviceptr dstDevice;
  void* dstArray;
  size_t dstPitch;
  size_t WidthInBytes, Height;
};
static_assert(sizeof(CUDA_MEMCPY2D) == 128);

struct CUmulticastObjectProp {
  unsigned numDevices;
  size_t size;
  unsigned long long handleTypes;
  unsigned long long flags;
};
static_assert(sizeof(CUmulticastObjectProp) == 32);
// Contains only the part of the union of values that the attributes used here need.
struct CUlaunchAttribute {
  int id;
  char padding[4];
  union {
    char padding[64];
    struct {
      unsigned x, y, z;
    } clusterDim;
    int programmaticStreamSerializationAllowed;
  } value;
};
static_assert(sizeof(CUlaunchAttribute) == 72);
struct CUlaunchConfig {
  unsigned gridDimX, gridDimY, gridDimZ;
  unsigned blockDimX, blockDimY, blockDimZ;
  unsigned sharedMemBytes;
  CUstream hStream;
  CUlaunchAttribute* attrs;
  unsigned numAttrs;
};
static_assert(sizeof(CUlaunchConfig) == 56);

inline constexpr CUresult CUDA_SUCCESS = 0, CUDA_ERROR_NOT_READY = 600;
inline constexpr unsigned CU_STREAM_NON_BLOCKING = 1, CU_EVENT_DISABLE_TIMING = 2;
inline constexpr unsigned CU_MEMHOSTALLOC_PORTABLE = 1, CU_MEMHOSTALLOC_DEVICEMAP = 2;
inline constexpr unsigned CU_MEMHOSTREGISTER_PORTABLE = 1, CU_MEMHOSTREGISTER_DEVICEMAP = 2;
inline constexpr unsigned CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS = 1;
inline constexpr unsigned CU_MEMORYTYPE_DEVICE = 2, CU_MEMORYTYPE_UNIFIED = 4;
inline constexpr unsigned CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE = 1;
inline constexpr int CU_MEMCPY_SRC_ACCESS_ORDER_STREAM = 1;
inline constexpr int CU_STREAM_CAPTURE_MODE_RELAXED = 2;
inline constexpr int CU_STREAM_MEM_OP_WRITE_VALUE_64 = 5;
inline constexpr int CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION = 4;
inline constexpr int CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION = 6;
inline constexpr int CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8;
inline constexpr int CU_JIT_ERROR_LOG_BUFFER = 5, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES = 6;
inline constexpr int CU_MEM_ALLOCATION_TYPE_PINNED = 1, CU_MEM_LOCATION_TYPE_DEVICE = 1;
inline constexpr int CU_MEM_ACCESS_FLAGS_PROT_READWRITE = 3, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED = 1;
inline constexpr int CU_MULTICAST_GRANULARITY_MINIMUM = 0;
inline constexpr int CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR = 1, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD = 1;
enum CUpointer_attribute : int {
  CU_POINTER_ATTRIBUTE_CONTEXT = 1,
  CU_POINTER_ATTRIBUTE_MEMORY_TYPE = 2,
  CU_POINTER_ATTRIBUTE_BUFFER_ID = 7,
  CU_POINTER_ATTRIBUTE_IS_MANAGED = 8,
  CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL = 9,
  CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE = 10,
  CU_POINTER_ATTRIBUTE_RANGE_START_ADDR = 11,
  CU_POINTER_ATTRIBUTE_RANGE_SIZE = 12,
};
enum CUdevice_attribute : int {
  CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16,
  CU_DEVICE_ATTRIBUTE_PCI_BUS_ID = 33,
  CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID = 34,
  CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE = 38,
  CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID = 50,
  CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75,
  CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76,
  CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM = 91,
  CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN = 97,
  CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED = 110,
  CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED = 116,
  CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING = 118,
  CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED = 124,
  CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED = 132,
};

// X(exported name, parameters). Enumerations are declared as int, as compilers pass them.
#define VERBENA_CUDA_DRIVER_API(X)                                                                          \
  X(cuInit, (unsigned flags))                                                                               \
  X(cuDriverGetVersion, (int* version))                                                                     \
  X(cuGetErrorName, (CUresult error, const char** text))                                                    \
  X(cuGetErrorString, (CUresult error, const char** text))                                                  \
  X(cuDeviceGetCount, (int* count))                                                                         \
  X(cuDeviceGet, (CUdevice * device, int ordinal))                                                          \
  X(cuDeviceGetName, (char* name, int capacity, CUdevice device))                                           \
  X(cuDeviceGetPCIBusId, (char* text, int capacity, CUdevice device))                                       \
  X(cuDeviceGetUuid, (CUuuid * uuid, CUdevice device))                                                      \
  X(cuDeviceGetAttribute, (int* value, int attribute, CUdevice device))                                     \
  X(cuDeviceCanAccessPeer, (int* can, CUdevice device, CUdevice peer))                                      \
  X(cuDevicePrimaryCtxRetain, (CUcontext * context, CUdevice device))                                       \
  X(cuDevicePrimaryCtxRelease_v2, (CUdevice device))                                                        \
  X(cuCtxCreate_v2, (CUcontext * context, unsigned flags, CUdevice device)) /* leaves it current */         \
  X(cuCtxDestroy_v2, (CUcontext context))                                                                   \
  X(cuCtxGetCurrent, (CUcontext * context))                                                                 \
  X(cuCtxSetCurrent, (CUcontext context))                                                                   \
  X(cuCtxPushCurrent_v2, (CUcontext context))                                                               \
  X(cuCtxPopCurrent_v2, (CUcontext * context))                                                              \
  X(cuCtxGetDevice, (CUdevice * device))                                                                    \
  X(cuCtxSynchronize, ())                                                                                   \
  X(cuCtxGetStreamPriorityRange, (int* least, int* greatest))                                               \
  X(cuThreadExchangeStreamCaptureMode, (int* mode))                                                         \
  X(cuPointerGetAttribute, (void* value, int attribute, CUdeviceptr address))                               \
  X(cuPointerGetAttributes, (unsigned count, CUpointer_attribute* which, void** data, CUdeviceptr address)) \
  X(cuMemAlloc_v2, (CUdeviceptr * address, size_t length_bytes))                                            \
  X(cuMemFree_v2, (CUdeviceptr address))                                                                    \
  X(cuMemHostAlloc, (void** address, size_t length_bytes, unsigned flags))                                  \
  X(cuMemFreeHost, (void* address))                                                                         \
  X(cuMemHostGetDevicePointer_v2, (CUdeviceptr * mapped, void* address, unsigned flags))                    \
  X(cuMemHostRegister_v2, (void* address, size_t length_bytes, unsigned flags))                             \
  X(cuMemHostUnregister, (void* address))                                                                   \
  X(cuMemGetInfo_v2, (size_t * free_bytes, size_t * total_bytes))                                           \
  X(cuMemGetAddressRange_v2, (CUdeviceptr * begin, size_t * length_bytes, CUdeviceptr address))             \
  X(cuMemGetHandleForAddressRange,                                                                          \
    (void* descriptor, CUdeviceptr begin, size_t length_bytes, int type, unsigned long long flags))         \
  X(cuMemsetD8Async, (CUdeviceptr target, unsigned char value, size_t count, CUstream stream))              \
  X(cuMemsetD32Async, (CUdeviceptr target, unsigned value, size_t count, CUstream stream))                  \
  X(cuMemcpyAsync, (CUdeviceptr to, CUdeviceptr from, size_t length_bytes, CUstream stream))                \
  X(cuMemcpy2DAsync_v2, (const CUDA_MEMCPY2D* shape, CUstream stream))                                      \
  X(cuMemcpyHtoDAsync_v2, (CUdeviceptr to, const void* from, size_t length_bytes, CUstream stream))         \
  X(cuMemcpyDtoHAsync_v2, (void* to, CUdeviceptr from, size_t length_bytes, CUstream stream))               \
  X(cuMemcpyBatchAsync, (CUdeviceptr * to, CUdeviceptr * from, size_t * length_bytes, size_t count,         \
                         CUmemcpyAttributes * attributes, size_t * attribute_indices,                       \
                         size_t attribute_count, size_t * failed, CUstream stream))                         \
  X(cuIpcGetMemHandle, (CUipcMemHandle * handle, CUdeviceptr address))                                      \
  X(cuIpcOpenMemHandle_v2, (CUdeviceptr * address, CUipcMemHandle handle, unsigned flags))                  \
  X(cuIpcCloseMemHandle, (CUdeviceptr address))                                                             \
  X(cuMemGetAllocationGranularity,                                                                          \
    (size_t * length_bytes, const CUmemAllocationProp* properties, int option))                             \
  X(cuMemAddressReserve, (CUdeviceptr * begin, size_t length_bytes, size_t alignment, CUdeviceptr hint,     \
                          unsigned long long flags))                                                        \
  X(cuMemAddressFree, (CUdeviceptr begin, size_t length_bytes))                                             \
  X(cuMemCreate, (CUmemGenericAllocationHandle * handle, size_t length_bytes,                               \
                  const CUmemAllocationProp* properties, unsigned long long flags))                         \
  X(cuMemRelease, (CUmemGenericAllocationHandle handle))                                                    \
  X(cuMemRetainAllocationHandle, (CUmemGenericAllocationHandle * handle, void* address))                    \
  X(cuMemGetAllocationPropertiesFromHandle,                                                                 \
    (CUmemAllocationProp * properties, CUmemGenericAllocationHandle handle))                                \
  X(cuMemExportToShareableHandle,                                                                           \
    (void* descriptor, CUmemGenericAllocationHandle handle, int type, unsigned long long flags))            \
  X(cuMemImportFromShareableHandle, (CUmemGenericAllocationHandle * handle, void* descriptor, int type))    \
  X(cuMemMap, (CUdeviceptr begin, size_t length_bytes, size_t offset, CUmemGenericAllocationHandle handle,  \
               unsigned long long flags))                                                                   \
  X(cuMemUnmap, (CUdeviceptr begin, size_t length_bytes))                                                   \
  X(cuMemSetAccess, (CUdeviceptr begin, size_t length_bytes, const CUmemAccessDesc* access, size_t count))  \
  X(cuMulticastCreate, (CUmemGenericAllocationHandle * object, const CUmulticastObjectProp* shape))         \
  X(cuMulticastAddDevice, (CUmemGenericAllocationHandle object, CUdevice device))                           \
  X(cuMulticastBindMem,                                                                                     \
    (CUmemGenericAllocationHandle object, size_t offset, CUmemGenericAllocationHandle memory,               \
     size_t memory_offset, size_t length_bytes, unsigned long long flags))                                  \
  X(cuMulticastUnbind,                                                                                      \
    (CUmemGenericAllocationHandle object, CUdevice device, size_t offset, size_t length_bytes))             \
  X(cuMulticastGetGranularity, (size_t * bytes, const CUmulticastObjectProp* shape, int option))            \
  X(cuStreamCreate, (CUstream * stream, unsigned flags))                                                    \
  X(cuStreamCreateWithPriority, (CUstream * stream, unsigned flags, int priority))                          \
  X(cuStreamBatchMemOp_v2,                                                                                  \
    (CUstream stream, unsigned count, CUstreamBatchMemOpParams* operations, unsigned flags))                \
  X(cuStreamQuery, (CUstream stream))                                                                       \
  X(cuStreamSynchronize, (CUstream stream))                                                                 \
  X(cuStreamDestroy_v2, (CUstream stream))                                                                  \
  X(cuStreamBeginCapture_v2, (CUstream stream, int mode))                                                   \
  X(cuStreamEndCapture, (CUstream stream, CUgraph * graph))                                                 \
  X(cuGraphInstantiateWithFlags, (CUgraphExec * exec, CUgraph graph, unsigned long long flags))             \
  X(cuGraphLaunch, (CUgraphExec exec, CUstream stream))                                                     \
  X(cuGraphExecDestroy, (CUgraphExec exec))                                                                 \
  X(cuGraphDestroy, (CUgraph graph))                                                                        \
  X(cuEventCreate, (CUevent * event, unsigned flags))                                                       \
  X(cuEventRecord, (CUevent event, CUstream stream))                                                        \
  X(cuEventQuery, (CUevent event))                                                                          \
  X(cuEventElapsedTime, (float* milliseconds, CUevent begin, CUevent end))                                  \
  X(cuModuleLoadDataEx,                                                                                     \
    (CUmodule * module, const void* image, unsigned option_count, int* options, void** values))             \
  X(cuModuleGetFunction, (CUfunction * function, CUmodule module, const char* name))                        \
  X(cuFuncSetAttribute, (CUfunction function, int attribute, int value))                                    \
  X(cuLaunchKernel, (CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,                \
                     unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,           \
                     CUstream stream, void** parameters, void** extra))                                     \
  X(cuLaunchKernelEx, (const CUlaunchConfig* config, CUfunction function, void** parameters, void** extra)) \
  X(cuModuleUnload, (CUmodule module))

#define VERBENA_CUDA_PROTOTYPE(name, parameters) using PFN_##name = CUresult(*) parameters;
VERBENA_CUDA_DRIVER_API(VERBENA_CUDA_PROTOTYPE)
#undef VERBENA_CUDA_PROTOTYPE

// For the list of a loader: declares a member, and fills it from `library`.
#define VERBENA_CUDA_MEMBER(name) ::verbena::cuda::PFN_##name name = nullptr;
#define VERBENA_CUDA_FIND(name) name = reinterpret_cast<::verbena::cuda::PFN_##name>(dlsym(library, #name));

}  // namespace verbena::cuda
