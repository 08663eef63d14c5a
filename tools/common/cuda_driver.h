#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

namespace verbena::tools {

// The CUDA driver API, found at run time in libcuda.so.1: the tools build and start without CUDA.
using CudaStatus = int;
using CudaDevice = int;
using CudaAddress = unsigned long long;
using CudaContext = struct CudaContextObject*;
using CudaStream = struct CudaStreamObject*;
using CudaEvent = struct CudaEventObject*;
using CudaModule = struct CudaModuleObject*;
using CudaFunction = struct CudaFunctionObject*;
using CudaGraph = struct CudaGraphObject*;
using CudaGraphExec = struct CudaGraphExecObject*;

inline constexpr CudaStatus kCudaSuccess = 0;
inline constexpr CudaStatus kCudaNotReady = 600;
inline constexpr unsigned kCudaStreamNonBlocking = 1;
inline constexpr int kCudaCaptureRelaxed = 2;
inline constexpr unsigned kCudaHostMapped = 3;  // CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP
inline constexpr int kCudaComputeMajor = 75;
inline constexpr int kCudaComputeMinor = 76;
inline constexpr int kCudaMultiprocessors = 16;
inline constexpr int kCudaL2Bytes = 38;
inline constexpr int kCudaSharedBytesOptIn = 97;      // a block may have, when its function asks for it
inline constexpr int kCudaMaxDynamicSharedBytes = 8;  // of a function
inline constexpr int kCudaJitErrorLog = 5;
inline constexpr int kCudaJitErrorLogBytes = 6;

// X(member, exported name, parameters)
#define VERBENA_TOOLS_CUDA(X)                                                                             \
  X(init, "cuInit", (unsigned flags))                                                                     \
  X(get_driver_version, "cuDriverGetVersion", (int* version))                                             \
  X(get_error_name, "cuGetErrorName", (CudaStatus status, const char** text))                             \
  X(get_error_string, "cuGetErrorString", (CudaStatus status, const char** text))                         \
  X(count_devices, "cuDeviceGetCount", (int* count))                                                      \
  X(get_device, "cuDeviceGet", (CudaDevice * device, int ordinal))                                        \
  X(get_device_name, "cuDeviceGetName", (char* name, int capacity, CudaDevice device))                    \
  X(get_pci_bus_id, "cuDeviceGetPCIBusId", (char* text, int capacity, CudaDevice device))                 \
  X(get_attribute, "cuDeviceGetAttribute", (int* value, int attribute, CudaDevice device))                \
  X(retain_context, "cuDevicePrimaryCtxRetain", (CudaContext * context, CudaDevice device))               \
  X(release_context, "cuDevicePrimaryCtxRelease_v2", (CudaDevice device))                                 \
  X(set_context, "cuCtxSetCurrent", (CudaContext context))                                                \
  X(allocate, "cuMemAlloc_v2", (CudaAddress * address, size_t length_bytes))                              \
  X(free, "cuMemFree_v2", (CudaAddress address))                                                          \
  X(allocate_host, "cuMemHostAlloc", (void** address, size_t length_bytes, unsigned flags))               \
  X(free_host, "cuMemFreeHost", (void* address))                                                          \
  X(get_mapped_address, "cuMemHostGetDevicePointer_v2",                                                   \
    (CudaAddress * mapped, void* address, unsigned flags))                                                \
  X(get_memory_info, "cuMemGetInfo_v2", (size_t * free_bytes, size_t * total_bytes))                      \
  X(fill_words_async, "cuMemsetD32Async",                                                                 \
    (CudaAddress target, unsigned value, size_t count, CudaStream stream))                                \
  X(copy_to_host_async, "cuMemcpyDtoHAsync_v2",                                                           \
    (void* target, CudaAddress source, size_t length_bytes, CudaStream stream))                           \
  X(copy_to_device_async, "cuMemcpyHtoDAsync_v2",                                                         \
    (CudaAddress target, const void* source, size_t length_bytes, CudaStream stream))                     \
  X(create_stream, "cuStreamCreate", (CudaStream * stream, unsigned flags))                               \
  X(query_stream, "cuStreamQuery", (CudaStream stream))                                                   \
  X(begin_capture, "cuStreamBeginCapture_v2", (CudaStream stream, int mode))                              \
  X(end_capture, "cuStreamEndCapture", (CudaStream stream, CudaGraph * graph))                            \
  X(instantiate_graph, "cuGraphInstantiateWithFlags",                                                     \
    (CudaGraphExec * exec, CudaGraph graph, unsigned long long flags))                                    \
  X(launch_graph, "cuGraphLaunch", (CudaGraphExec exec, CudaStream stream))                               \
  X(destroy_graph_exec, "cuGraphExecDestroy", (CudaGraphExec exec))                                       \
  X(destroy_graph, "cuGraphDestroy", (CudaGraph graph))                                                   \
  X(create_event, "cuEventCreate", (CudaEvent * event, unsigned flags))                                   \
  X(record_event, "cuEventRecord", (CudaEvent event, CudaStream stream))                                  \
  X(measure_events, "cuEventElapsedTime", (float* milliseconds, CudaEvent begin, CudaEvent end))          \
  X(load_module, "cuModuleLoadDataEx",                                                                    \
    (CudaModule * module, const void* image, unsigned option_count, int* options, void** values))         \
  X(find_function, "cuModuleGetFunction", (CudaFunction * function, CudaModule module, const char* name)) \
  X(set_function_attribute, "cuFuncSetAttribute", (CudaFunction function, int attribute, int value))      \
  X(launch, "cuLaunchKernel",                                                                             \
    (CudaFunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,          \
     unsigned block_y, unsigned block_z, unsigned shared_bytes, CudaStream stream, void** parameters,     \
     void** extra))

struct CudaDriver {
#define VERBENA_MEMBER(member, name, parameters) CudaStatus(*member) parameters = nullptr;
  VERBENA_TOOLS_CUDA(VERBENA_MEMBER)
#undef VERBENA_MEMBER

  // Throws ToolError, which names the call and the driver's reason.
  void check(CudaStatus status, const char* call) const;
};

// Null where there is no driver library, or one that lacks a function; `why` then says so.
const CudaDriver* load_cuda_driver(std::string& why);

// The number of usable devices after cuInit; 0 with a reason where there is none.
int count_cuda_devices(std::string& why);

}  // namespace verbena::tools
