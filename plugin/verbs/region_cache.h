// One registration of a device for all who want the same memory registered there: a request that a living one
// covers shares its memory region. Nothing is kept for later: the last one to leave deregisters.
//
// Whoever asks may share with a request that has not been given back yet, never with what merely lies in the
// region still: memory that somebody has registered has not been freed, so the addresses mean the same
// memory. Ranges are registered as asked for, never rounded to pages: a neighbour's bytes may be freed at any
// time, and are not the peer's to write.
//
// While others share a region, giving a lease back ends nobody's access to it: the region goes with its last
// lease, hence before its memory is freed; a connection's own access goes with its queue pairs.
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

// What never shares with another: they are registered by different calls.
enum class MemoryKind : uint8_t { kHost, kGpuPointer, kDmabuf };

// Which memory of a GPU an address means. Equal and known: the same.
struct MemoryIdentity {
  std::array<uint64_t, 3> name{};  // all zero: unknown
  // The whole range lies in it. Parts of a range that spans several allocations may be freed one by one, and
  // drivers then revoke all of its region; so nobody joins for a part only.
  bool is_one_allocation = false;

  bool is_known() const { return name != decltype(name){}; }
};

struct RegionRequest {
  void* address = nullptr;
  size_t length_bytes = 0;
  MemoryKind kind = MemoryKind::kHost;
  Access access;
  MemoryIdentity identity;    // not of host memory
  int fd = -1;                // dma-bufs only, and the next
  uint64_t offset_bytes = 0;  // from the start of the dma-buf
};

class RegionCache;
struct RegionUse;
struct RegionReturner {
  RegionCache* cache = nullptr;
  void operator()(RegionUse* use) const;
};

// A share of a memory region; its keys reach every byte that was asked for. Shorter lived than the device.
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

// Thread safe. The device registers and deregisters outside of the lock; who wants what another is
// registering just then waits for that call, as long as its own would have taken.
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
  void give_back(RegionUse* use);

  Device& device_;
  std::mutex mutex_;                 // guards what follows, and the state of every region
  std::condition_variable settled_;  // a registration came to its end
  IntervalTree uses_;                // all that was asked for and not given back
};

}  // namespace verbena::verbs
