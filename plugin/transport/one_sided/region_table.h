// What memory an endpoint may touch, here and at its peers, by the ids that both sides agreed on. The driver
// looks up without a lock; an entry is filled in first and published then (release, acquire).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "transport/one_sided/address_blob.h"
#include "verbs/queues.h"

namespace verbena::transport {

struct LocalRegion {
  std::byte* address = nullptr;
  uint64_t bytes = 0;
  bool is_host = false;
  verbs::MemoryRegion registration;
};

struct RemoteRegion {
  uint64_t base = 0, bytes = 0;
  uint32_t key = 0;
};

class RegionTable {
 public:
  RegionTable(uint32_t count_ranks, uint32_t max_regions)
      : max_regions_(max_regions), local_(max_regions), remote_(size_t{count_ranks} * max_regions) {}

  uint32_t max_regions() const { return max_regions_; }

  // Null if there is none. `peer` is a rank; any id may be asked for.
  const LocalRegion* find_local(uint32_t id) const { return id < max_regions_ ? local_[id].find() : nullptr; }
  const RemoteRegion* find_remote(uint32_t peer, uint32_t id) const {
    return id < max_regions_ ? remote_[place(peer, id)].find() : nullptr;
  }

  // One thread at a time, ids in range. False: the id is taken.
  bool add_local(uint32_t id, LocalRegion region) { return local_[id].publish(std::move(region)); }
  bool add_remote(uint32_t peer, uint32_t id, const RemoteRegion& region) {
    return remote_[place(peer, id)].publish(region);
  }
  void remove_local(uint32_t id) { local_[id].withdraw(); }
  void remove_remotes(uint32_t id) {
    for (size_t at = id; at < remote_.size(); at += max_regions_) remote_[at].withdraw();
  }

 private:
  template <typename T>
  class Entry {
   public:
    const T* find() const { return is_there_.load(std::memory_order_acquire) ? &value_ : nullptr; }
    bool publish(T value) {
      if (is_there_.load(std::memory_order_relaxed)) return false;
      value_ = std::move(value);
      is_there_.store(true, std::memory_order_release);
      return true;
    }
    void withdraw() {
      is_there_.store(false, std::memory_order_relaxed);
      value_ = {};
    }

   private:
    std::atomic<bool> is_there_{false};
    T value_;
  };

  size_t place(uint32_t peer, uint32_t id) const { return size_t{peer} * max_regions_ + id; }

  uint32_t max_regions_;
  std::vector<Entry<LocalRegion>> local_;
  std::vector<Entry<RemoteRegion>> remote_;  // of a peer side by side
};

inline bool is_inside(uint64_t region_bytes, uint64_t offset, uint64_t bytes) {
  return offset <= region_bytes && bytes <= region_bytes - offset;
}

}  // namespace verbena::transport
