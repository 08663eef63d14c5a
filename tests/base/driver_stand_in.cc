#include "driver_stand_in.h"

#include <sys/mman.h>

#include <cstring>
#include <utility>

using namespace driver_stand_in;

API cuGetErrorString(int, const char** text) {
  *text = "an error of the stand-in";
  return kSuccess;
}
API cuDevicePrimaryCtxRelease_v2(int) {
  return kSuccess;
}
API cuDeviceGetUuid(void* uuid, int gpu) {
  memset(uuid, gpu + 1, 16);
  return kSuccess;
}
API cuCtxGetCurrent(Context** context) {
  *context = current;
  return kSuccess;
}
API cuCtxGetDevice(int* gpu) {
  if (current == nullptr) return kInvalidContext;
  *gpu = current->gpu;
  return kSuccess;
}
API cuCtxPushCurrent_v2(Context* context) {
  pushed.push_back(std::exchange(current, context));
  return kSuccess;
}
API cuCtxPopCurrent_v2(Context** context) {
  *context = std::exchange(current, pushed.back());
  pushed.pop_back();
  return kSuccess;
}
API cuThreadExchangeStreamCaptureMode(int* mode) {
  thread_local int present = 0;
  std::swap(*mode, present);
  return kSuccess;
}
API cuMemHostAlloc(void** address, size_t bytes, unsigned) {
  *address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  return kSuccess;
}
API cuMemFreeHost(void*) {
  return kSuccess;
}
API cuMemHostGetDevicePointer_v2(void** device, void* host, unsigned) {
  *device = host;
  return kSuccess;
}
API cuMemGetAllocationGranularity(size_t* grain, const void*, int) {
  *grain = kGrainBytes;
  return kSuccess;
}
