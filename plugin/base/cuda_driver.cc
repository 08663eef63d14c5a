#include "base/cuda_driver.h"

#include <cstdio>
#include <utility>

#include "base/cuda_api.h"

namespace verbena::base {

int find_current_gpu() {
  const CudaApi* cuda = find_cuda();
  if (cuda == nullptr) return kNoGpu;
  CudaContext context = nullptr;
  CudaDevice device = kNoGpu;
  if (cuda->get_current_context(&context) != kCudaSuccess || context == nullptr) return kNoGpu;
  return cuda->get_context_device(&device) == kCudaSuccess ? device : kNoGpu;
}

int find_owning_gpu(const void* address) {
  const CudaApi* cuda = find_cuda();
  if (cuda == nullptr) return kNoGpu;
  const CudaAddress target = reinterpret_cast<uintptr_t>(address);
  unsigned type = 0;
  int ordinal = kNoGpu;
  if (cuda->get_pointer_attribute(&type, kCudaPointerMemoryType, target) != kCudaSuccess) return kNoGpu;
  if (type != kCudaMemoryTypeDevice) return kNoGpu;
  const bool known = cuda->get_pointer_attribute(&ordinal, kCudaPointerDeviceOrdinal, target) == kCudaSuccess;
  return known ? ordinal : kNoGpu;
}

uint64_t find_gpu_allocation(const void* address) {
  const CudaApi* cuda = find_cuda();
  unsigned long long id = 0;
  if (cuda == nullptr) return 0;
  const CudaAddress target = reinterpret_cast<uintptr_t>(address);
  return cuda->get_pointer_attribute(&id, kCudaPointerBufferId, target) == kCudaSuccess ? id : 0;
}

std::string find_gpu_pci_address(int gpu) {
  const CudaApi* cuda = find_cuda();
  CudaDevice device = 0;
  if (cuda == nullptr || gpu < 0 || cuda->get_device(&device, gpu) != kCudaSuccess) return {};
  int domain = 0, bus = 0, slot = 0;
  for (const auto& [value, attribute] :
       {std::pair(&domain, kCudaDevicePciDomain), std::pair(&bus, kCudaDevicePciBus),
        std::pair(&slot, kCudaDevicePciDevice)}) {
    if (cuda->get_device_attribute(value, attribute, device) != kCudaSuccess) return {};
  }
  char text[32];
  std::snprintf(text, sizeof(text), "%04x:%02x:%02x.0", domain, bus, slot);  // GPUs are function 0
  return text;
}

bool supports_dmabuf_export(int gpu) {
  const CudaApi* cuda = find_cuda();
  if (cuda == nullptr || gpu < 0 || cuda->init(0) != kCudaSuccess) return false;
  CudaDevice device = 0;
  int supported = 0;
  return cuda->get_device(&device, gpu) == kCudaSuccess &&
         cuda->get_device_attribute(&supported, kCudaDeviceDmabufSupported, device) == kCudaSuccess &&
         supported != 0;
}

}  // namespace verbena::base
