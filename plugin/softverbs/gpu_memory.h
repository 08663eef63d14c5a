#pragma once

#include <array>
#include <atomic>
#include <mutex>
#include <vector>

#include "softverbs/cuda_driver.h"
#include "softverbs/shared_layout.h"

namespace verbena::softverbs {

// An allocation of GPU memory of this process that a registration refers to.
struct GpuAllocation {
  uint64_t base = 0;
  uint64_t bytes = 0;
  cuda::CUcontext context = nullptr;
  uint32_t users = 0;
};

// The GPU memory of this process that is registered, and how it is offered to peers.
class GpuMemory {
 public:
  // Whether CUDA says that the address is in a GPU's memory. Host memory, however CUDA allocated it, is not.
  static bool owns(uint64_t address);

  // Registers [address, address + bytes). 0 and `gpu` = 1 + index of its SharedGpu, or an errno.
  int attach(uint64_t address, uint64_t bytes, uint32_t& gpu);
  void detach(uint32_t gpu);

  // Whether anything ever was.
  bool is_any_registered() const { return is_any_registered_.load(std::memory_order_relaxed); }

  // Of a registration that holds; `gpu` as from attach().
  const GpuAllocation& get(uint32_t gpu) const { return allocations_[gpu - 1]; }

 private:
  int add(const GpuAllocation& allocation, uint32_t& gpu);

  std::mutex mutex_;
  std::array<GpuAllocation, kGpuCount> allocations_;  // users == 0: free
  uint32_t high_water_ = 0;
  std::vector<cuda::CUcontext> contexts_;  // that there have been
  std::atomic<bool> is_any_registered_{false};
};

}  // namespace verbena::softverbs
