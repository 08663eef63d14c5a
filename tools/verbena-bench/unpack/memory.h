#pragma once
#include <cstddef>
#include <string>

#include "common/cuda_driver.h"
#include "common/error.h"

namespace verbena::tools::unpack {

// GPU memory that is kept from case to case and only grows. It is freed with the process: freeing it earlier
// would wait for kernels, which may hang.
class GpuArena {
 public:
  explicit GpuArena(const CudaDriver& driver) : driver_(driver) {}

  CUdeviceptr reserve(size_t length_bytes) {
    if (length_bytes <= length_bytes_) return address_;
    if (address_ != 0) driver_.check(driver_.cuMemFree_v2(address_), "cuMemFree");
    length_bytes_ = 0;
    address_ = 0;
    size_t free_bytes = 0, total_bytes = 0;
    driver_.check(driver_.cuMemGetInfo_v2(&free_bytes, &total_bytes), "cuMemGetInfo");
    if (length_bytes > free_bytes)
      throw ToolError("the case needs " + std::to_string(length_bytes >> 20) + " MiB of GPU memory, " +
                      std::to_string(free_bytes >> 20) + " MiB are free: take fewer slots or smaller slices");
    driver_.check(driver_.cuMemAlloc_v2(&address_, length_bytes), "cuMemAlloc");
    length_bytes_ = length_bytes;
    return address_;
  }

 private:
  const CudaDriver& driver_;
  CUdeviceptr address_ = 0;
  size_t length_bytes_ = 0;
};

// The same for pinned host memory that the GPU can access, like the plugin's queues.
class HostArena {
 public:
  explicit HostArena(const CudaDriver& driver) : driver_(driver) {}

  void* reserve(size_t length_bytes) {
    if (length_bytes <= length_bytes_) return address_;
    if (address_ != nullptr) driver_.check(driver_.cuMemFreeHost(address_), "cuMemFreeHost");
    address_ = nullptr;
    length_bytes_ = 0;
    driver_.check(
        driver_.cuMemHostAlloc(&address_, length_bytes, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP),
        "cuMemHostAlloc");
    driver_.check(driver_.cuMemHostGetDevicePointer_v2(&mapped_, address_, 0), "cuMemHostGetDevicePointer");
    length_bytes_ = length_bytes;
    return address_;
  }
  CUdeviceptr mapped() const { return mapped_; }

 private:
  const CudaDriver& driver_;
  void* address_ = nullptr;
  CUdeviceptr mapped_ = 0;
  size_t length_bytes_ = 0;
};

}  // namespace verbena::tools::unpack
