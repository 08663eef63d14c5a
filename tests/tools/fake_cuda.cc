// libcuda.so.1 for tests: host memory, everything done at once, kernels interpreted from their PTX. FAKE_GPUS
// says how many devices there are.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "common/cuda_driver.h"
#include "tools/ptx_interpreter.h"

#define EXPORT extern "C" [[gnu::visibility("default")]]

namespace {

using namespace verbena::tools;

constexpr CudaStatus kInvalidValue = 1;
constexpr CudaStatus kInvalidPtx = 218;
constexpr CudaStatus kNotFound = 500;
constexpr CudaStatus kNotSupported = 801;

using Clock = std::chrono::steady_clock;

struct Function {
  PtxProgram* program;
  std::string name;
};

// Like a driver, it owns what it hands out until the process ends.
struct Owned {
  std::deque<Function> functions;
  std::deque<Clock::time_point> events;
  std::deque<std::unique_ptr<PtxProgram>> programs;
  std::map<CudaAddress, std::vector<std::byte>> memory;
} owned;

int count_gpus() {
  const char* const text = std::getenv("FAKE_GPUS");
  return text == nullptr ? 0 : std::atoi(text);
}

}  // namespace

EXPORT CudaStatus cuInit(unsigned) {
  return count_gpus() == 0 ? 100 : kCudaSuccess;
}
EXPORT CudaStatus cuDriverGetVersion(int* version) {
  *version = 13000;
  return kCudaSuccess;
}
EXPORT CudaStatus cuGetErrorName(CudaStatus status, const char** text) {
  *text = status == 100 ? "CUDA_ERROR_NO_DEVICE" : "CUDA_ERROR_OF_THE_TEST";
  return kCudaSuccess;
}
EXPORT CudaStatus cuGetErrorString(CudaStatus, const char** text) {
  *text = "told by the test's driver";
  return kCudaSuccess;
}
EXPORT CudaStatus cuDeviceGetCount(int* count) {
  *count = count_gpus();
  return kCudaSuccess;
}
EXPORT CudaStatus cuDeviceGet(CudaDevice* device, int ordinal) {
  *device = ordinal;
  return ordinal < count_gpus() ? kCudaSuccess : kInvalidValue;
}
EXPORT CudaStatus cuDeviceGetName(char* name, int capacity, CudaDevice device) {
  const std::string text = "Fake GPU " + std::to_string(device);
  std::strncpy(name, text.c_str(), static_cast<size_t>(capacity) - 1);
  return kCudaSuccess;
}
EXPORT CudaStatus cuDeviceGetPCIBusId(char* text, int capacity, CudaDevice device) {
  const std::string address = "fffe:AB:0" + std::to_string(device) + ".0";  // of no real device
  std::strncpy(text, address.c_str(), static_cast<size_t>(capacity) - 1);
  return kCudaSuccess;
}
EXPORT CudaStatus cuDevicePrimaryCtxRetain(CudaContext* context, CudaDevice) {
  *context = reinterpret_cast<CudaContext>(1);
  return kCudaSuccess;
}
EXPORT CudaStatus cuDevicePrimaryCtxRelease_v2(CudaDevice) {
  return kCudaSuccess;
}
EXPORT CudaStatus cuCtxSetCurrent(CudaContext) {
  return kCudaSuccess;
}
EXPORT CudaStatus cuMemAlloc_v2(CudaAddress* address, size_t length_bytes) {
  std::vector<std::byte> memory(length_bytes);
  *address = reinterpret_cast<CudaAddress>(memory.data());
  owned.memory[*address] = std::move(memory);
  return kCudaSuccess;
}
EXPORT CudaStatus cuMemFree_v2(CudaAddress address) {
  return owned.memory.erase(address) == 1 ? kCudaSuccess : kInvalidValue;
}
EXPORT CudaStatus cuDeviceGetAttribute(int* value, int attribute, CudaDevice) {
  *value = attribute == kCudaComputeMajor ? 7 : 1;
  return kCudaSuccess;
}
EXPORT CudaStatus cuMemHostAlloc(void** address, size_t length_bytes, unsigned) {
  *address = std::calloc(1, length_bytes);
  return *address == nullptr ? kInvalidValue : kCudaSuccess;
}
EXPORT CudaStatus cuMemFreeHost(void* address) {
  std::free(address);
  return kCudaSuccess;
}
EXPORT CudaStatus cuMemHostGetDevicePointer_v2(CudaAddress* mapped, void* address, unsigned) {
  *mapped = reinterpret_cast<CudaAddress>(address);
  return kCudaSuccess;
}
EXPORT CudaStatus cuMemGetInfo_v2(size_t* free_bytes, size_t* total_bytes) {
  *free_bytes = *total_bytes = size_t{1} << 30;
  return kCudaSuccess;
}
EXPORT CudaStatus cuFuncSetAttribute(CudaFunction, int, int) {
  return kCudaSuccess;
}
EXPORT CudaStatus cuMemsetD32Async(CudaAddress target, unsigned value, size_t count, CudaStream) {
  std::fill_n(reinterpret_cast<unsigned*>(target), count, value);
  return kCudaSuccess;
}
EXPORT CudaStatus cuMemcpyHtoDAsync_v2(CudaAddress target, const void* source, size_t length_bytes,
                                       CudaStream) {
  std::memcpy(reinterpret_cast<void*>(target), source, length_bytes);
  return kCudaSuccess;
}
EXPORT CudaStatus cuMemcpyDtoHAsync_v2(void* target, CudaAddress source, size_t length_bytes, CudaStream) {
  std::memcpy(target, reinterpret_cast<const void*>(source), length_bytes);
  return kCudaSuccess;
}
EXPORT CudaStatus cuStreamCreate(CudaStream* stream, unsigned) {
  *stream = reinterpret_cast<CudaStream>(1);
  return kCudaSuccess;
}
// With FAKE_CUDA_BUSY the stream never gets empty, as one with a hanging kernel.
EXPORT CudaStatus cuStreamQuery(CudaStream) {
  return std::getenv("FAKE_CUDA_BUSY") == nullptr ? kCudaSuccess : kCudaNotReady;
}
EXPORT CudaStatus cuStreamBeginCapture_v2(CudaStream, int) {
  return kNotSupported;
}
EXPORT CudaStatus cuStreamEndCapture(CudaStream, CudaGraph*) {
  return kNotSupported;
}
EXPORT CudaStatus cuGraphInstantiateWithFlags(CudaGraphExec*, CudaGraph, unsigned long long) {
  return kNotSupported;
}
EXPORT CudaStatus cuGraphLaunch(CudaGraphExec, CudaStream) {
  return kNotSupported;
}
EXPORT CudaStatus cuGraphExecDestroy(CudaGraphExec) {
  return kCudaSuccess;
}
EXPORT CudaStatus cuGraphDestroy(CudaGraph) {
  return kCudaSuccess;
}

EXPORT CudaStatus cuEventCreate(CudaEvent* event, unsigned) {
  *event = reinterpret_cast<CudaEvent>(&owned.events.emplace_back());
  return kCudaSuccess;
}
EXPORT CudaStatus cuEventRecord(CudaEvent event, CudaStream) {
  *reinterpret_cast<Clock::time_point*>(event) = Clock::now();
  return kCudaSuccess;
}
EXPORT CudaStatus cuEventElapsedTime(float* milliseconds, CudaEvent begin, CudaEvent end) {
  const auto passed =
      *reinterpret_cast<Clock::time_point*>(end) - *reinterpret_cast<Clock::time_point*>(begin);
  *milliseconds = std::chrono::duration<float, std::milli>(passed).count();
  return kCudaSuccess;
}

EXPORT CudaStatus cuModuleLoadDataEx(CudaModule* module, const void* image, unsigned, int*, void** values) {
  try {
    owned.programs.push_back(std::make_unique<PtxProgram>(static_cast<const char*>(image)));
    *module = reinterpret_cast<CudaModule>(owned.programs.back().get());
    return kCudaSuccess;
  } catch (const std::exception& error) {
    std::strcpy(static_cast<char*>(values[0]), error.what());
    return kInvalidPtx;
  }
}
EXPORT CudaStatus cuModuleGetFunction(CudaFunction* function, CudaModule module, const char* name) {
  auto* const program = reinterpret_cast<PtxProgram*>(module);
  *function = reinterpret_cast<CudaFunction>(&owned.functions.emplace_back(Function{program, name}));
  return program->has_kernel(name) ? kCudaSuccess : kNotFound;
}
EXPORT CudaStatus cuLaunchKernel(CudaFunction opaque, unsigned grid_x, unsigned, unsigned, unsigned block_x,
                                 unsigned, unsigned, unsigned, CudaStream, void** parameters, void**) {
  const auto& function = *reinterpret_cast<const Function*>(opaque);
  function.program->launch(function.name, {grid_x, block_x}, parameters);
  return kCudaSuccess;
}
