#include "nccl/rma/host/gpu_words.h"

#include <dlfcn.h>

#include <stdexcept>
#include <string>
#include <vector>

namespace verbena::nccl::testing {

namespace {

template <typename... Arguments>
void call(const char* name, Arguments... arguments) {
  static void* const library = dlopen("libcuda.so.1", RTLD_NOW);
  auto* const function =
      library == nullptr ? nullptr : reinterpret_cast<int (*)(Arguments...)>(dlsym(library, name));
  const int error = function == nullptr ? -1 : function(arguments...);
  if (error != 0) throw std::runtime_error(std::string(name) + " failed with " + std::to_string(error));
}

}  // namespace

GpuWords::GpuWords(uint32_t gpu, size_t count) {
  int gpus = 0;
  void* context = nullptr;
  call("cuInit", 0U);
  call("cuDeviceGetCount", &gpus);
  if (gpus == 0) throw std::runtime_error("no GPU");
  call("cuDevicePrimaryCtxRetain", &context, static_cast<int>(gpu) % gpus);
  call("cuCtxSetCurrent", context);
  const std::vector<uint64_t> zeros(count);
  call("cuMemAlloc_v2", &address_, count * sizeof(uint64_t));
  call("cuMemcpyHtoD_v2", address_, static_cast<const void*>(zeros.data()), count * sizeof(uint64_t));
}

GpuWords::~GpuWords() {
  try {
    call("cuMemFree_v2", address_);
  } catch (const std::runtime_error&) {  // the driver ends before us: so does its memory
  }
}

void* GpuWords::address() const {
  return reinterpret_cast<void*>(address_);
}

uint64_t GpuWords::read(size_t index) const {
  uint64_t word = 0;
  call("cuMemcpyDtoH_v2", static_cast<void*>(&word), address_ + index * sizeof(word), sizeof(word));
  return word;
}

}  // namespace verbena::nccl::testing
