#include "common/cuda_driver.h"

#include <dlfcn.h>

#include <cstdio>

#include "common/error.h"

namespace verbena::tools {
namespace {

struct LoadedDriver {
  CudaDriver driver;
  std::string why;

  LoadedDriver() {
    // Never closed, because the driver has threads.
    void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    if (library == nullptr) {
      why = dlerror();
      return;
    }
#define VERBENA_FIND(name)                                                        \
  driver.VERBENA_CUDA_FIND(name) if (driver.name == nullptr && why.empty()) why = \
      "libcuda.so.1 "                                                             \
      "lacks " #name;
    VERBENA_TOOLS_CUDA(VERBENA_FIND)
    driver.VERBENA_CUDA_FIND(cuMemGetHandleForAddressRange)
#undef VERBENA_FIND
  }
};

}  // namespace

const CudaDriver* load_cuda_driver(std::string& why) {
  static const LoadedDriver loaded;
  why = loaded.why;
  return why.empty() ? &loaded.driver : nullptr;
}

void CudaDriver::check(CUresult status, const char* call) const {
  if (status == CUDA_SUCCESS) return;
  const char* name = nullptr;
  const char* text = nullptr;
  cuGetErrorName(status, &name);
  cuGetErrorString(status, &text);
  throw ToolError(std::string(call) + " failed: " + (name != nullptr ? name : "?") + " (" +
                  std::to_string(status) + (text != nullptr ? std::string(": ") + text : "") + ")");
}

int count_cuda_devices(std::string& why) {
  const CudaDriver* const driver = load_cuda_driver(why);
  if (driver == nullptr) return 0;
  try {
    driver->check(driver->cuInit(0), "cuInit");
    int count = 0;
    driver->check(driver->cuDeviceGetCount(&count), "cuDeviceGetCount");
    return count;
  } catch (const ToolError& error) {
    why = error.what();
    return 0;
  }
}

int require_cuda_devices(const char* tool, const char* what) {
  std::string why;
  const int devices = count_cuda_devices(why);
  if (devices == 0)
    std::fprintf(stderr, "there is no CUDA device; %s needs %s%s\n", tool, what,
                 why.empty() ? "" : (" (" + why + ")").c_str());
  return devices;
}

}  // namespace verbena::tools
