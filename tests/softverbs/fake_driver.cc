// What the plugin's base asks of the driver beyond softverbs.
#include <cstring>

#include "fake_cuda.h"

using namespace fake_cuda;

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
