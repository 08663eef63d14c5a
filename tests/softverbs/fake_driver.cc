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

// FAKE_CUDA_EXIT_MS: exit() takes this long to end CUDA; a thread that calls CUDA during that time crashes,
// as it may in the real driver.
void end_slowly() {
  has_ended.store(true);
  usleep(1000 * static_cast<useconds_t>(atoi(getenv("FAKE_CUDA_EXIT_MS"))));
}

}  // namespace

void fake_cuda::expect_alive() {
  if (has_ended.load()) abort();
}

// Refuses a child of a process that has started CUDA, as the real driver does.
API cuInit(unsigned) {
  static std::once_flag once;
  static pid_t starter = 0;
  std::call_once(once, [] {
    starter = getpid();
    if (getenv("FAKE_CUDA_EXIT_MS") != nullptr) atexit(end_slowly);
  });
  return getpid() == starter ? kSuccess : kNotInitialized;
}
API cuPointerGetAttributes(unsigned count, const int* which, void** data, Pointer address);
API cuMemcpyAsync(Pointer to, Pointer from, size_t bytes, void* stream);
API cuStreamCreateWithPriority(void** stream, unsigned flags, int priority);

API cuGetErrorName(int, const char** text) {
  *text = "FAKE_ERROR";
  return kSuccess;
}
API cuDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return kSuccess;
}
// NICs' writes are in order for all GPUs, unless a test says otherwise.
namespace {
int write_order = 200;
}
API fake_set_write_order(int order) {
  write_order = order;
  return kSuccess;
}
API cuDeviceGetAttribute(int* value, int which, int gpu) {
  constexpr int kPciBus = 33, kWriteOrdering = 118, kMulticast = 132;
  const int multicast = offers_multicast() ? 1 : 0;
  *value = which == kPciBus          ? gpu
           : which == kWriteOrdering ? write_order
           : which == kMulticast     ? multicast
                                     : 0;
  return kSuccess;
}
API cuPointerGetAttribute(void* value, int which, Pointer address) {
  return cuPointerGetAttributes(1, &which, &value, address);
}
API cuMemcpyHtoDAsync_v2(Pointer to, const void* from, size_t bytes, void* stream) {
  return cuMemcpyAsync(to, reinterpret_cast<Pointer>(from), bytes, stream);
}
API cuMemcpyDtoHAsync_v2(void* to, Pointer from, size_t bytes, void* stream) {
  return cuMemcpyAsync(reinterpret_cast<Pointer>(to), from, bytes, stream);
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
