// What the plugin's base asks of the driver beyond softverbs.
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include "fake_cuda.h"

using namespace fake_cuda;

namespace {

std::atomic<bool> has_ended{false};

// FAKE_CUDA_EXIT_MS: exit() takes so long to end CUDA, and whoever calls it then dies, as he may of the
// driver.
void end_slowly() {
  has_ended.store(true);
  usleep(1000 * static_cast<useconds_t>(atoi(getenv("FAKE_CUDA_EXIT_MS"))));
}

}  // namespace

void fake_cuda::expect_alive() {
  if (has_ended.load()) abort();
}

API cuInit(unsigned) {
  static std::once_flag once;
  std::call_once(once, [] {
    if (getenv("FAKE_CUDA_EXIT_MS") != nullptr) atexit(end_slowly);
  });
  return kSuccess;
}
API cuPointerGetAttributes(unsigned count, const int* which, void** data, Pointer address);
API cuMemcpyAsync(Pointer to, Pointer from, size_t bytes, void* stream);
API cuStreamCreateWithPriority(void** stream, unsigned flags, int priority);

API cuGetErrorString(int, const char** text) {
  *text = "an error of the stand-in";
  return kSuccess;
}
API cuDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return kSuccess;
}
API cuDeviceGetAttribute(int* value, int, int) {
  *value = 0;
  return kSuccess;
}
API cuDevicePrimaryCtxRelease_v2(int) {
  return kSuccess;
}
API cuPointerGetAttribute(void* value, int which, Pointer address) {
  return cuPointerGetAttributes(1, &which, &value, address);
}
API cuMemHostGetDevicePointer_v2(Pointer* device, void* host, unsigned) {
  *device = reinterpret_cast<Pointer>(host);
  return kSuccess;
}
API cuMemcpyHtoDAsync_v2(Pointer to, const void* from, size_t bytes, void* stream) {
  return cuMemcpyAsync(to, reinterpret_cast<Pointer>(from), bytes, stream);
}
// At once, as nothing else is on the streams that it is used on.
API cuMemsetD8Async(Pointer to, unsigned char value, size_t bytes, void*) {
  uint8_t* const target = has_context() ? resolve(to, bytes) : nullptr;
  if (target == nullptr) return kInvalidValue;
  memset(target, value, bytes);
  return kSuccess;
}
API cuStreamCreate(void** stream, unsigned flags) {
  return cuStreamCreateWithPriority(stream, flags, 0);
}
