// A libcuda.so.1 without a GPU that refuses everything, except to name the allocation that an address lies
// in: every 32 KiB are one.
#include <cstring>

#include "base/cuda_api.h"

namespace verbena::base {
namespace {

constexpr CudaResult kNotSupported = 801;
constexpr unsigned kAllocationBits = 15;

CudaResult answer(const char* function, void* value, int attribute, CudaAddress address) {
  if (std::strcmp(function, "cuPointerGetAttribute") != 0 || attribute != kCudaPointerBufferId)
    return kNotSupported;
  const CudaAddress number = (address >> kAllocationBits) + 1;
  std::memcpy(value, &number, sizeof(number));
  return kCudaSuccess;
}

}  // namespace

// All have the parameters of the one that answers: numbers and pointers travel in registers alike, and the
// others look at none.
#define VERBENA_EXPORT(member, name, arguments)                                 \
  extern "C" __attribute__((visibility("default")))                             \
  CudaResult export_##member(void*, int, CudaAddress) asm(name);                \
  CudaResult export_##member(void* value, int attribute, CudaAddress address) { \
    return answer(name, value, attribute, address);                             \
  }
VERBENA_CUDA_FUNCTIONS(VERBENA_EXPORT)

}  // namespace verbena::base
