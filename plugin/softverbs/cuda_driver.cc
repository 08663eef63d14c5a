#include "softverbs/cuda_driver.h"

#include <dlfcn.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <mutex>

namespace verbena::softverbs::cuda {
namespace {

template <typename Function>
bool find(void* library, Function*& function, const char* name) {
  function = reinterpret_cast<Function*>(dlsym(library, name));
  return function != nullptr;
}

bool find_needed(void* library, Driver& driver) {
  return find(library, driver.pointer_attributes, "cuPointerGetAttributes") &&
         find(library, driver.context_get_current, "cuCtxGetCurrent") &&
         find(library, driver.context_set_current, "cuCtxSetCurrent") &&
         find(library, driver.context_get_device, "cuCtxGetDevice") &&
         find(library, driver.context_priorities, "cuCtxGetStreamPriorityRange") &&
         find(library, driver.primary_context_retain, "cuDevicePrimaryCtxRetain") &&
         find(library, driver.device_uuid, "cuDeviceGetUuid") &&
         find(library, driver.stream_create, "cuStreamCreateWithPriority") &&
         find(library, driver.event_create, "cuEventCreate") &&
         find(library, driver.event_record, "cuEventRecord") &&
         find(library, driver.event_query, "cuEventQuery") &&
         find(library, driver.copy_async, "cuMemcpyAsync") &&
         find(library, driver.host_register, "cuMemHostRegister_v2") &&
         find(library, driver.exchange_capture_mode, "cuThreadExchangeStreamCaptureMode") &&
         find(library, driver.ipc_get_handle, "cuIpcGetMemHandle") &&
         find(library, driver.ipc_open_handle, "cuIpcOpenMemHandle_v2") &&
         find(library, driver.ipc_close_handle, "cuIpcCloseMemHandle");
}

void find_virtual_memory(void* library, Driver& driver) {
  const bool has_all = find(library, driver.export_handle, "cuMemExportToShareableHandle") &&
                       find(library, driver.import_handle, "cuMemImportFromShareableHandle") &&
                       find(library, driver.release, "cuMemRelease") &&
                       find(library, driver.address_reserve, "cuMemAddressReserve") &&
                       find(library, driver.address_free, "cuMemAddressFree") &&
                       find(library, driver.map, "cuMemMap") && find(library, driver.unmap, "cuMemUnmap") &&
                       find(library, driver.set_access, "cuMemSetAccess");
  if (has_all) find(library, driver.retain_allocation, "cuMemRetainAllocationHandle");
}

}  // namespace

const Driver* find_driver() {
  static std::atomic<const Driver*> found{nullptr};
  static std::mutex mutex;
  if (const Driver* driver = found.load(std::memory_order_acquire)) return driver;
  std::lock_guard lock(mutex);
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) return nullptr;
  auto* driver = new Driver{};
  if (!find_needed(library, *driver)) {
    delete driver;
    dlclose(library);
    return nullptr;
  }
  find_virtual_memory(library, *driver);
  find(library, driver->context_create, "cuCtxCreate_v2");
  find(library, driver->copy_batch_async, "cuMemcpyBatchAsync");
  found.store(driver, std::memory_order_release);
  return driver;
}

void enter(const Driver& driver, Context context) {
  thread_local bool is_relaxed = false;
  thread_local Context current = nullptr;
  if (!is_relaxed) {
    int mode = kCaptureRelaxed;
    driver.exchange_capture_mode(&mode);
    is_relaxed = true;
  }
  if (current == context) return;
  driver.context_set_current(context);
  current = context;
}

Scope::Scope(const Driver& driver, Context context) : driver_(driver) {
  driver_.exchange_capture_mode(&capture_mode_);
  driver_.context_get_current(&before_);
  driver_.context_set_current(context);
}

Scope::~Scope() {
  driver_.context_set_current(before_);
  driver_.exchange_capture_mode(&capture_mode_);
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

// Either this sees the refusal or refuse_uses() sees the use: both orders are sequentially consistent.
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
