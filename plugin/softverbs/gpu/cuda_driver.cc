#include "softverbs/gpu/cuda_driver.h"

#include <dlfcn.h>

#include <atomic>
#include <mutex>

namespace verbena::softverbs::cuda {
namespace {

// Returns false if the driver is too old.
bool find_functions(void* library, Driver& driver) {
  bool has_needed = true, has_mapping = true;
#define SOFTVERBS_NEED(name) driver.VERBENA_CUDA_FIND(name) has_needed &= driver.name != nullptr;
#define SOFTVERBS_MAP(name) driver.VERBENA_CUDA_FIND(name) has_mapping &= driver.name != nullptr;
  SOFTVERBS_CUDA_NEEDED(SOFTVERBS_NEED)
  SOFTVERBS_CUDA_MAPPING(SOFTVERBS_MAP)
#undef SOFTVERBS_NEED
#undef SOFTVERBS_MAP
  if (!has_mapping) driver.cuMemRetainAllocationHandle = nullptr;
  return has_needed;
}

}  // namespace

const Driver* find_driver() {
  static std::atomic<const Driver*> found{nullptr};
  static std::mutex mutex;
  if (const Driver* driver = found.load(std::memory_order_acquire)) return driver;
  std::lock_guard lock(mutex);
  // Another thread has loaded it.
  if (const Driver* driver = found.load(std::memory_order_relaxed)) return driver;
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) return nullptr;
  auto* driver = new Driver{};
  if (!find_functions(library, *driver)) {
    delete driver;
    dlclose(library);
    return nullptr;
  }
  found.store(driver, std::memory_order_release);
  return driver;
}

Scope::Scope(const Driver& driver, CUcontext context) : driver_(driver) {
  driver_.cuThreadExchangeStreamCaptureMode(&capture_mode_);
  driver_.cuCtxGetCurrent(&before_);
  if (context != nullptr) driver_.cuCtxSetCurrent(context);
}

Scope::~Scope() {
  driver_.cuCtxSetCurrent(before_);
  driver_.cuThreadExchangeStreamCaptureMode(&capture_mode_);
}

}  // namespace verbena::softverbs::cuda
