#include "common/cuda_driver.h"

#include <dlfcn.h>

#include "common/error.h"

namespace verbena::tools {
namespace {

struct LoadedDriver {
  CudaDriver driver;
  std::string why;

  LoadedDriver() {
    // Never closed: the driver keeps threads.
    void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    if (library == nullptr) {
      why = dlerror();
      return;
    }
#define VERBENA_FIND(member, name, parameters)                                     \
  driver.member = reinterpret_cast<decltype(driver.member)>(dlsym(library, name)); \
  if (driver.member == nullptr && why.empty()) why = "libcuda.so.1 lacks " name;
    VERBENA_TOOLS_CUDA(VERBENA_FIND)
#undef VERBENA_FIND
  }
};

}  // namespace

const CudaDriver* load_cuda_driver(std::string& why) {
  static const LoadedDriver loaded;
  why = loaded.why;
  return why.empty() ? &loaded.driver : nullptr;
}

void CudaDriver::check(CudaStatus status, const char* call) const {
  if (status == kCudaSuccess) return;
  const char* name = nullptr;
  const char* text = nullptr;
  get_error_name(status, &name);
  get_error_string(status, &text);
  throw ToolError(std::string(call) + " failed: " + (name != nullptr ? name : "?") + " (" +
                  std::to_string(status) + (text != nullptr ? std::string(": ") + text : "") + ")");
}

int count_cuda_devices(std::string& why) {
  const CudaDriver* const driver = load_cuda_driver(why);
  if (driver == nullptr) return 0;
  try {
    driver->check(driver->init(0), "cuInit");
    int count = 0;
    driver->check(driver->count_devices(&count), "cuDeviceGetCount");
    return count;
  } catch (const ToolError& error) {
    why = error.what();
    return 0;
  }
}

}  // namespace verbena::tools
