#include "device/ops/kernel_set.h"

#include <dlfcn.h>

#include <string>

#include "device/ops/kernel_image.h"
#include "verbena/verbena.hpp"

namespace verbena::ops {
namespace {

constexpr int kFirstWithDependentLaunch = 9;  // of compute capabilities

Driver load_driver() {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr)
    throw Failure(VERBENA_CUDA_ERROR, "ops: no CUDA driver (libcuda.so.1): the kernels need a GPU");
  Driver driver;
#define VERBENA_FIND(name)                                                  \
  driver.VERBENA_CUDA_FIND(name) if (driver.name == nullptr) throw Failure( \
      VERBENA_CUDA_ERROR, "ops: libcuda.so.1 has no " #name ": a driver for CUDA 12 or newer is needed");
  VERBENA_OPS_CUDA(VERBENA_FIND)
#undef VERBENA_FIND
  return driver;
}

// While it lives, calls of this thread do not disturb stream capture in other threads.
class RelaxedCapture {
 public:
  explicit RelaxedCapture(const Driver& driver) : driver_(driver) {
    driver_.cuThreadExchangeStreamCaptureMode(&mode_);
  }
  ~RelaxedCapture() { driver_.cuThreadExchangeStreamCaptureMode(&mode_); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  const Driver& driver_;
  int mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
};

}  // namespace

const Driver& Driver::instance() {
  static const Driver driver = load_driver();
  return driver;
}

void Driver::check(CUresult status, const char* what) const {
  if (status == CUDA_SUCCESS) return;
  const char* text = nullptr;
  if (cuGetErrorString(status, &text) != CUDA_SUCCESS || text == nullptr) text = "unknown CUDA error";
  throw Failure(VERBENA_CUDA_ERROR, std::string("ops: ") + what + ": " + text);
}

KernelSet::KernelSet() : driver_(Driver::instance()) {
  const RelaxedCapture relaxed(driver_);
  CUdevice device = 0;
  driver_.check(driver_.cuCtxGetDevice(&device), "no GPU is current (cudaSetDevice)");
  int major = 0;
  driver_.check(driver_.cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device),
                "the GPU's compute capability");
  starts_early_ = major >= kFirstWithDependentLaunch;
  driver_.check(driver_.cuModuleLoadDataEx(&module_, kernel_image(), 0, nullptr, nullptr),
                "loading the kernels");
  static constexpr const char* kFamilyNames[kFamilies] = {"packets_16", "packets_128", "chunks"};
  static constexpr const char* kSizeNames[kSizes] = {"2", "4", "any"};
  for (uint32_t family = 0; family < kFamilies; ++family) {
    for (uint32_t size = 0; size < kSizes; ++size) {
      const std::string name = std::string("verbena_ops_") + kFamilyNames[family] + "_of_" + kSizeNames[size];
      functions_[family][size] = find(name.c_str());
    }
  }
  pause_ = find("verbena_ops_pause");
}

KernelSet::~KernelSet() {
  const RelaxedCapture relaxed(driver_);
  // The application may have ended CUDA before: then the module has gone with it.
  if (module_ != nullptr) driver_.cuModuleUnload(module_);
}

CUfunction KernelSet::find(const char* name) const {
  CUfunction function = nullptr;
  driver_.check(driver_.cuModuleGetFunction(&function, module_, name), name);
  return function;
}

Family family_of(Algorithm algorithm) {
  switch (algorithm) {
    case Algorithm::kOneShot16:
    case Algorithm::kTwoShot16:
      return Family::kPackets16;
    case Algorithm::kOneShot128:
    case Algorithm::kTwoShot128:
      return Family::kPackets128;
    default:
      return Family::kChunks;
  }
}

void KernelSet::launch(Family family, bool has_size, const Grid& grid, const Launch& launch,
                       CUstream stream) {
  const int32_t ranks = launch.workspace.context.team_size;
  const Size size = !has_size ? kOfAny : ranks == 2 ? kOf2 : ranks == 4 ? kOf4 : kOfAny;
  void* parameters[] = {const_cast<Launch*>(&launch)};
  enqueue(functions_[static_cast<uint32_t>(family)][size], grid, parameters, stream);
}

void KernelSet::pause(uint64_t length_ns, CUstream stream) {
  void* parameters[] = {&length_ns};
  enqueue(pause_, {1, 1}, parameters, stream);
}

void KernelSet::enqueue(CUfunction function, const Grid& grid, void** parameters, CUstream stream) const {
  CUlaunchAttribute attribute{};
  attribute.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
  attribute.value.programmaticStreamSerializationAllowed = 1;
  CUlaunchConfig config{};
  config.gridDimX = grid.blocks;
  config.gridDimY = config.gridDimZ = 1;
  config.blockDimX = grid.threads;
  config.blockDimY = config.blockDimZ = 1;
  config.hStream = stream;
  // The pause does not wait for what came before, and stays an ordinary kernel.
  config.attrs = &attribute;
  config.numAttrs = starts_early_ && function != pause_ ? 1 : 0;
  driver_.check(driver_.cuLaunchKernelEx(&config, function, parameters, nullptr), "launching a kernel");
}

}  // namespace verbena::ops
