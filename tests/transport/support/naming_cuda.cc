// A libcuda.so.1 with a GPU that can do nothing, except to name the allocation that an address lies in (every
// 32 KiB are one) and to say how it orders writes, if the variable NAMING_CUDA_WRITE_ORDER does.
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "base/cuda_api.h"

namespace verbena::base {
namespace {

constexpr CUresult kNotSupported = 801;
constexpr unsigned kAllocationBits = 15;

CUresult give(void* value, int number) {
  std::memcpy(value, &number, sizeof(number));
  return CUDA_SUCCESS;
}

CUresult answer(std::string_view function, void* value, int attribute, CUdeviceptr address) {
  if (function == "cuDeviceGetCount") return give(value, 1);
  if (function == "cuDeviceGet") return give(value, attribute);
  if (function == "cuDeviceGetAttribute" &&
      attribute == CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING) {
    const char* order = std::getenv("NAMING_CUDA_WRITE_ORDER");
    return order == nullptr || *order == '\0' ? kNotSupported : give(value, std::atoi(order));
  }
  if (function != "cuPointerGetAttribute" || attribute != CU_POINTER_ATTRIBUTE_BUFFER_ID)
    return kNotSupported;
  const CUdeviceptr number = (address >> kAllocationBits) + 1;
  std::memcpy(value, &number, sizeof(number));
  return CUDA_SUCCESS;
}

}  // namespace

// All have the parameters of the one that answers: numbers and pointers travel in registers alike, and the
// others look at none.
#define VERBENA_EXPORT(name)                                                \
  extern "C" __attribute__((visibility("default")))                         \
  CUresult export_##name(void*, int, CUdeviceptr) asm(#name);               \
  CUresult export_##name(void* value, int attribute, CUdeviceptr address) { \
    return answer(#name, value, attribute, address);                        \
  }
VERBENA_CUDA_FUNCTIONS(VERBENA_EXPORT)

}  // namespace verbena::base
