#include "softverbs/cuda_driver.h"

#include <dlfcn.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <mutex>

namespace verbena::softverbs::cuda {
namespace {

// False if the driver is too old.
bool find_functions(void* library, Driver& driver) {
  bool has_needed = true, has_mapping = true;
#define SOFTVERBS_NEED(name) driver.VERBENA_CUDA_FIND(name) has_needed &= driver.name != nullptr;
#define SOFTVERBS_MAP(name) driver.VERBENA_CUDA_FIND(name) has_mapping &= driver.name != nullptr;
#define SOFTVERBS_TRY(name) driver.VERBENA_CUDA_FIND(name)
  SOFTVERBS_CUDA_NEEDED(SOFTVERBS_NEED)
  SOFTVERBS_CUDA_MAPPING(SOFTVERBS_MAP)
  SOFTVERBS_CUDA_OPTIONAL(SOFTVERBS_TRY)
#undef SOFTVERBS_NEED
#undef SOFTVERBS_MAP
#undef SOFTVERBS_TRY
  if (!has_mapping) driver.cuMemRetainAllocationHandle = nullptr;
  return has_needed;
}

}  // namespace

const Driver* find_driver() {
  static std::atomic<const Driver*> found{nullptr};
  static std::mutex mutex;
  if (const Driver* driver = found.load(std::memory_order_acquire)) return driver;
  std::lock_guard lock(mutex);
  if (const Driver* driver = found.load(std::memory_order_relaxed)) return driver;  // another thread found it
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

void enter(const Driver& driver, CUcontext context) {
  thread_local bool is_relaxed = false;
  thread_local CUcontext current = nullptr;
  if (!is_relaxed) {
    int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    driver.cuThreadExchangeStreamCaptureMode(&mode);
    is_relaxed = true;
  }
  if (current == context) return;
  driver.cuCtxSetCurrent(context);
  current = context;
}

Scope::Scope(const Driver& driver, CUcontext context) : driver_(driver) {
  driver_.cuThreadExchangeStreamCaptureMode(&capture_mode_);
  driver_.cuCtxGetCurrent(&before_);
  driver_.cuCtxSetCurrent(context);
}

Scope::~Scope() {
  driver_.cuCtxSetCurrent(before_);
  driver_.cuThreadExchangeStreamCaptureMode(&capture_mode_);
}

namespace {

std::atomic<uint32_t> uses{0};
std::atomic<bool> is_refusing{false};

// A copy may wait for a kernel that never ends.
void refuse_uses() {
  constexpr int kTries = 10'000;
  is_refusing.store(true);
  for (int i = 0; i < kTries && uses.load() != 0; ++i) usleep(100);
}

}  // namespace

// Either this thread sees the refusal or refuse_uses() sees the use, because both accesses are sequentially
// consistent.
Use::Use() : is_allowed_(true) {
  uses.fetch_add(1);
  if (!is_refusing.load()) return;
  uses.fetch_sub(1);
  is_allowed_ = false;
}

Use::~Use() {
  if (is_allowed_) uses.fetch_sub(1);
}

void Use::refuse_at_exit() {
  static std::once_flag once;
  std::call_once(once, [] { atexit(refuse_uses); });
}

void Use::forget_all() {
  uses.store(0);
}

}  // namespace verbena::softverbs::cuda
