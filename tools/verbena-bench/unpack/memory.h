#pragma once
#include <cstddef>
#include <string>

#include "common/cuda_driver.h"
#include "common/error.h"

namespace verbena::tools::unpack {

// Memory that is kept from case to case and only grows: the GPU's, or pinned host memory that the GPU can
// access, like the plugin's queues. It is freed with the process: freeing it earlier would wait for
// kernels, which may hang.
class Arena {
 public:
  enum class Place : uint8_t { kGpu, kHost };

  Arena(const CudaDriver& driver, Place place) : driver_(driver), place_(place) {}

  // Returns the GPU's address.
  CUdeviceptr reserve(size_t length_bytes) {
    if (length_bytes <= length_bytes_) return address_;
    if (host_ != nullptr) driver_.check(driver_.cuMemFreeHost(host_), "cuMemFreeHost");
    if (host_ == nullptr && address_ != 0) driver_.check(driver_.cuMemFree_v2(address_), "cuMemFree");
    host_ = nullptr;
    address_ = length_bytes_ = 0;
    if (place_ == Place::kHost) {
      constexpr unsigned kFlags = CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP;
      driver_.check(driver_.cuMemHostAlloc(&host_, length_bytes, kFlags), "cuMemHostAlloc");
      driver_.check(driver_.cuMemHostGetDevicePointer_v2(&address_, host_, 0), "cuMemHostGetDevicePointer");
    } else {
      expect_free(length_bytes);
      driver_.check(driver_.cuMemAlloc_v2(&address_, length_bytes), "cuMemAlloc");
    }
    length_bytes_ = length_bytes;
    return address_;
  }
  // The CPU's address of host memory.
  void* host() const { return host_; }

 private:
  void expect_free(size_t length_bytes) const {
    size_t free_bytes = 0, total_bytes = 0;
    driver_.check(driver_.cuMemGetInfo_v2(&free_bytes, &total_bytes), "cuMemGetInfo");
    if (length_bytes > free_bytes)
      throw ToolError("the case needs " + std::to_string(length_bytes >> 20) +
                      " MiB of GPU memory, but only " + std::to_string(free_bytes >> 20) +
                      " MiB are free. Use fewer slots or smaller --sizes");
  }

  const CudaDriver& driver_;
  Place place_;
  void* host_ = nullptr;
  CUdeviceptr address_ = 0;
  size_t length_bytes_ = 0;
};

}  // namespace verbena::tools::unpack
