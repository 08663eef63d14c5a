// Shares registrations on a device: a request whose range lies within the range of a held registration uses
// the same memory region. Nothing is cached: releasing the last lease deregisters.
//
// A request shares only with requests that have not been released, never with the rest of a region.
// Registered memory has not been freed, so its addresses still mean the same memory. Ranges are registered
// exactly as requested, and never rounded to pages: neighbouring bytes may be freed at any time, and the peer
// must not be able to write them.
//
// Releasing a lease does not end remote access while others share the region. The region is deregistered with
// its last lease, before its memory is freed. A connection's access ends with its queue pairs.
#pragma once

#include <array>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>

#include "base/status.h"
#include "verbs/interval_tree.h"
#include "verbs/queues.h"

namespace verbena::verbs {

// Requests of different kinds never share a region, because they are registered by different calls.
enum class MemoryKind : uint8_t { kHost, kGpuPointer, kDmabuf };

// Identifies the GPU memory behind an address. Two identities that are known and equal mean the same memory.
struct MemoryIdentity {
  std::array<uint64_t, 3> name{};  // all zero: unknown
  // The whole range lies in this allocation. If a range spans several allocations, these may be freed
  // separately, and drivers then revoke the whole region. A request for a part of such a range therefore does
  // not share its region.
  bool is_one_allocation = false;

  bool is_known() const { return name != decltype(name){}; }
};

struct RegionRequest {
  void* address = nullptr;
  size_t length_bytes = 0;
  MemoryKind kind = MemoryKind::kHost;
  Access access;
  MemoryIdentity identity;    // unset for host memory
  int fd = -1;                // this and the next one only for dma-bufs
  uint64_t offset_bytes = 0;  // from the start of the dma-buf
};

class RegionCache;
struct RegionUse;
struct RegionReturner {
  RegionCache* cache = nullptr;
  void operator()(RegionUse* use) const;
};

// A share of a memory region. Its keys are valid for every byte of the request. Must be destroyed before the
// device.
class RegionLease {
 public:
  RegionLease() = default;

  uint32_t local_key() const { return local_key_; }
  uint32_t remote_key() const { return remote_key_; }

 private:
  friend class RegionCache;

  std::unique_ptr<RegionUse, RegionReturner> use_;
  uint32_t local_key_ = 0, remote_key_ = 0;
};

// Thread safe. The device registers and deregisters without the lock. A request for memory that another
// thread is just registering waits for the end of that call.
class RegionCache {
 public:
  explicit RegionCache(Device& device) : device_(device) {}
  RegionCache(const RegionCache&) = delete;
  RegionCache& operator=(const RegionCache&) = delete;

  base::Result<RegionLease> take(const RegionRequest& request);

 private:
  friend struct RegionReturner;
  using Lock = std::unique_lock<std::mutex>;

  RegionUse* find_shareable(const RegionRequest& request, const Interval& interval) const;
  RegionLease add_use(RegionUse* use);
  base::Result<RegionLease> register_new(RegionLease lease, const RegionRequest& request, Lock& lock);
  void release(RegionUse* use);

  Device& device_;
  std::mutex mutex_;                 // guards the members below, and the state of every region
  std::condition_variable settled_;  // a registration has ended
  IntervalTree uses_;                // all requests that have not been released
};

}  // namespace verbena::verbs
