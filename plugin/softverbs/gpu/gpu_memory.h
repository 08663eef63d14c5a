// Registers GPU memory of this process: finds its allocation, exports it, and offers it to the copier
// and to peers.
#pragma once

#include <array>
#include <atomic>
#include <mutex>
#include <optional>
#include <set>
#include <string>

#include "softverbs/gpu/copier.h"
#include "softverbs/shared/shared_layout.h"

namespace verbena::softverbs {

// An allocation of GPU memory of this process that a registration refers to, or several allocations that are
// contiguous.
struct GpuAllocation {
  uint64_t base = 0;
  uint64_t bytes = 0;
  uint32_t users = 0;
  uint32_t device = 0;  // of the copier
  uint32_t area = 0;    // number of the area for that device
};

// The registered GPU memory of this process, and how the copier and peers access it.
class GpuMemory {
 public:
  // Returns whether the address is in GPU memory, according to CUDA. False for host memory, even if CUDA
  // allocated it.
  static bool owns(uint64_t address);

  // Returns why GPU memory cannot be registered; null if it can, or if no GPU is in use yet. The first call
  // with a GPU's context current tests this, which may take a second; later calls return the same answer.
  const char* explain_refusal();

  // Registers [address, address + bytes). Returns 0 and sets `gpu` to 1 + the index of its SharedGpu.
  // Otherwise returns an errno: EOPNOTSUPP if no other process can map the memory, or there is no copier; a
  // line on stderr gives the reason.
  int attach(uint64_t address, uint64_t bytes, uint32_t& gpu);
  // Ends a registration. If it was the last one of the allocation, no copy of this process accesses the
  // memory afterwards.
  void detach(uint32_t gpu);

  // Returns whether GPU memory was ever registered.
  bool is_any_registered() const { return is_any_registered_.load(std::memory_order_relaxed); }

  // Returns the allocation of a registration; `gpu` is the value from attach().
  const GpuAllocation& get(uint32_t gpu) const { return allocations_[gpu - 1]; }

 private:
  int refuse(const std::string& why);

  std::mutex mutex_;
  std::array<GpuAllocation, kGpuCount> allocations_;  // users == 0: free
  uint32_t high_water_ = 0;
  std::set<std::string> refusals_;  // reasons that were logged
  std::mutex trial_mutex_;
  std::optional<std::string> trial_;  // result of the test; empty: not tested
  std::atomic<bool> is_any_registered_{false};
};

}  // namespace verbena::softverbs
