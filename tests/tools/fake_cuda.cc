// libcuda.so.1 for tests: host memory, everything done at once, no kernels. FAKE_GPUS says how many devices
// there are.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "common/cuda_driver.h"

#define EXPORT extern "C" [[gnu::visibility("default")]]

namespace {

using namespace verbena::tools;

constexpr CUresult kInvalidValue = 1;
constexpr CUresult kNotSupported = 801;

using Clock = std::chrono::steady_clock;

// Like a driver, it owns what it hands out until the process ends.
struct Owned {
  std::deque<Clock::time_point> events;
  std::map<CUdeviceptr, std::vector<std::byte>> memory;
} owned;

int count_gpus() {
  const char* const text = std::getenv("FAKE_GPUS");
  return text == nullptr ? 0 : std::atoi(text);
}

}  // namespace

EXPORT CUresult cuInit(unsigned) {
  return count_gpus() == 0 ? 100 : CUDA_SUCCESS;
}
EXPORT CUresult cuDriverGetVersion(int* version) {
  *version = 13000;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuGetErrorName(CUresult status, const char** text) {
  *text = status == 100 ? "CUDA_ERROR_NO_DEVICE" : "CUDA_ERROR_OF_THE_TEST";
  return CUDA_SUCCESS;
}
EXPORT CUresult cuGetErrorString(CUresult, const char** text) {
  *text = "told by the test's driver";
  return CUDA_SUCCESS;
}
EXPORT CUresult cuDeviceGetCount(int* count) {
  *count = count_gpus();
  return CUDA_SUCCESS;
}
EXPORT CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  *device = ordinal;
  return ordinal < count_gpus() ? CUDA_SUCCESS : kInvalidValue;
}
EXPORT CUresult cuDeviceGetName(char* name, int capacity, CUdevice device) {
  const std::string text = "Fake GPU " + std::to_string(device);
  std::strncpy(name, text.c_str(), static_cast<size_t>(capacity) - 1);
  return CUDA_SUCCESS;
}
EXPORT CUresult cuDeviceGetPCIBusId(char* text, int capacity, CUdevice device) {
  const std::string address = "fffe:AB:0" + std::to_string(device) + ".0";  // of no real device
  std::strncpy(text, address.c_str(), static_cast<size_t>(capacity) - 1);
  return CUDA_SUCCESS;
}
EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice) {
  *context = reinterpret_cast<CUcontext>(1);
  return CUDA_SUCCESS;
}
EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice) {
  return CUDA_SUCCESS;
}
EXPORT CUresult cuCtxSetCurrent(CUcontext) {
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemAlloc_v2(CUdeviceptr* address, size_t length_bytes) {
  std::vector<std::byte> memory(length_bytes);
  *address = reinterpret_cast<CUdeviceptr>(memory.data());
  owned.memory[*address] = std::move(memory);
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemFree_v2(CUdeviceptr address) {
  return owned.memory.erase(address) == 1 ? CUDA_SUCCESS : kInvalidValue;
}
EXPORT CUresult cuDeviceGetAttribute(int* value, int attribute, CUdevice) {
  *value = attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR ? 7 : 1;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemHostAlloc(void** address, size_t length_bytes, unsigned) {
  *address = std::calloc(1, length_bytes);
  return *address == nullptr ? kInvalidValue : CUDA_SUCCESS;
}
EXPORT CUresult cuMemFreeHost(void* address) {
  std::free(address);
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr* mapped, void* address, unsigned) {
  *mapped = reinterpret_cast<CUdeviceptr>(address);
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemGetInfo_v2(size_t* free_bytes, size_t* total_bytes) {
  *free_bytes = *total_bytes = size_t{1} << 30;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuFuncSetAttribute(CUfunction, int, int) {
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemsetD32Async(CUdeviceptr target, unsigned value, size_t count, CUstream) {
  std::fill_n(reinterpret_cast<unsigned*>(target), count, value);
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemcpyAsync(CUdeviceptr target, CUdeviceptr source, size_t length_bytes, CUstream) {
  std::memcpy(reinterpret_cast<void*>(target), reinterpret_cast<const void*>(source), length_bytes);
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr target, const void* source, size_t length_bytes, CUstream) {
  std::memcpy(reinterpret_cast<void*>(target), source, length_bytes);
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemcpyDtoHAsync_v2(void* target, CUdeviceptr source, size_t length_bytes, CUstream) {
  std::memcpy(target, reinterpret_cast<const void*>(source), length_bytes);
  return CUDA_SUCCESS;
}
EXPORT CUresult cuStreamCreate(CUstream* stream, unsigned) {
  *stream = reinterpret_cast<CUstream>(1);
  return CUDA_SUCCESS;
}
// With FAKE_CUDA_BUSY the stream never gets empty, as one with a hanging kernel.
EXPORT CUresult cuStreamQuery(CUstream) {
  return std::getenv("FAKE_CUDA_BUSY") == nullptr ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}
EXPORT CUresult cuStreamBeginCapture_v2(CUstream, int) {
  return kNotSupported;
}
EXPORT CUresult cuStreamEndCapture(CUstream, CUgraph*) {
  return kNotSupported;
}
EXPORT CUresult cuGraphInstantiateWithFlags(CUgraphExec*, CUgraph, unsigned long long) {
  return kNotSupported;
}
EXPORT CUresult cuGraphLaunch(CUgraphExec, CUstream) {
  return kNotSupported;
}
EXPORT CUresult cuGraphExecDestroy(CUgraphExec) {
  return CUDA_SUCCESS;
}
EXPORT CUresult cuGraphDestroy(CUgraph) {
  return CUDA_SUCCESS;
}

EXPORT CUresult cuEventCreate(CUevent* event, unsigned) {
  *event = reinterpret_cast<CUevent>(&owned.events.emplace_back());
  return CUDA_SUCCESS;
}
EXPORT CUresult cuEventRecord(CUevent event, CUstream) {
  *reinterpret_cast<Clock::time_point*>(event) = Clock::now();
  return CUDA_SUCCESS;
}
EXPORT CUresult cuEventElapsedTime(float* milliseconds, CUevent begin, CUevent end) {
  const auto passed =
      *reinterpret_cast<Clock::time_point*>(end) - *reinterpret_cast<Clock::time_point*>(begin);
  *milliseconds = std::chrono::duration<float, std::milli>(passed).count();
  return CUDA_SUCCESS;
}

EXPORT CUresult cuModuleLoadDataEx(CUmodule*, const void*, unsigned, int*, void**) {
  return kNotSupported;
}
EXPORT CUresult cuModuleGetFunction(CUfunction*, CUmodule, const char*) {
  return kNotSupported;
}
EXPORT CUresult cuLaunchKernel(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                               unsigned, CUstream, void**, void**) {
  return kNotSupported;
}
