#include "base/cuda_driver.h"

#include <cstdio>
#include <utility>

#include "base/cuda_api.h"

namespace verbena::base {

int find_current_gpu() {
  const CudaApi* cuda = find_cuda();
  if (cuda == nullptr) return kNoGpu;
  CUcontext context = nullptr;
  CUdevice device = kNoGpu;
  if (cuda->cuCtxGetCurrent(&context) != CUDA_SUCCESS || context == nullptr) return kNoGpu;
  return cuda->cuCtxGetDevice(&device) == CUDA_SUCCESS ? device : kNoGpu;
}

int find_owning_gpu(const void* address) {
  const CudaApi* cuda = find_cuda();
  if (cuda == nullptr) return kNoGpu;
  const CUdeviceptr target = reinterpret_cast<uintptr_t>(address);
  unsigned type = 0;
  int ordinal = kNoGpu;
  if (cuda->cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, target) != CUDA_SUCCESS)
    return kNoGpu;
  if (type != CU_MEMORYTYPE_DEVICE) return kNoGpu;
  const bool known =
      cuda->cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, target) == CUDA_SUCCESS;
  return known ? ordinal : kNoGpu;
}

uint64_t find_gpu_allocation(const void* address) {
  const CudaApi* cuda = find_cuda();
  unsigned long long id = 0;
  if (cuda == nullptr) return 0;
  const CUdeviceptr target = reinterpret_cast<uintptr_t>(address);
  return cuda->cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, target) == CUDA_SUCCESS ? id : 0;
}

std::string find_gpu_pci_address(int gpu) {
  const CudaApi* cuda = find_cuda();
  CUdevice device = 0;
  if (cuda == nullptr || gpu < 0 || cuda->cuDeviceGet(&device, gpu) != CUDA_SUCCESS) return {};
  int domain = 0, bus = 0, slot = 0;
  for (const auto& [value, attribute] : {std::pair(&domain, CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID),
                                         std::pair(&bus, CU_DEVICE_ATTRIBUTE_PCI_BUS_ID),
                                         std::pair(&slot, CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID)}) {
    if (cuda->cuDeviceGetAttribute(value, attribute, device) != CUDA_SUCCESS) return {};
  }
  char text[32];
  std::snprintf(text, sizeof(text), "%04x:%02x:%02x.0", domain, bus, slot);  // GPUs are function 0
  return text;
}

// A driver before 11.3 does not know the attribute. GPUs with such a driver keep the order for their own
// kernels.
NicWriteOrder find_nic_write_order(int gpu) {
  const CudaApi* cuda = find_cuda();
  CUdevice device = 0;
  int order = static_cast<int>(NicWriteOrder::kThisGpu);
  if (cuda == nullptr || cuda->cuDeviceGet(&device, gpu) != CUDA_SUCCESS) return NicWriteOrder::kThisGpu;
  if (cuda->cuDeviceGetAttribute(&order, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING, device) !=
      CUDA_SUCCESS)
    return NicWriteOrder::kThisGpu;
  return static_cast<NicWriteOrder>(order);
}

namespace {

int count_gpus() {
  const CudaApi* cuda = find_cuda();
  int count = 0;
  return cuda != nullptr && cuda->cuDeviceGetCount(&count) == CUDA_SUCCESS ? count : 0;
}

}  // namespace

bool has_gpu() {
  return count_gpus() != 0;
}

bool has_unordered_gpu() {
  const int count = count_gpus();
  for (int gpu = 0; gpu < count; ++gpu)
    if (find_nic_write_order(gpu) == NicWriteOrder::kNobody) return true;
  return false;
}

}  // namespace verbena::base
