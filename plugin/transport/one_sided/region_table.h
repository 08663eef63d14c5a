// The memory that an endpoint may access, its own and that of its peers, by ids on which both sides have
// agreed. The driver looks up entries without a lock. An entry is filled in before it is published (release,
// acquire). The same holds for a block of entries, which is allocated when its first id is used and then
// kept.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "transport/one_sided/address_blob.h"
#include "verbs/queues.h"

namespace verbena::transport {

struct LocalRegion {
  std::byte* address = nullptr;
  uint64_t bytes = 0;
  bool is_host = false;
  std::vector<verbs::MemoryRegion> registrations{};  // by local rail
};

struct RemoteRegion {
  uint64_t base = 0, bytes = 0;
  std::array<uint32_t, protocol::kMaxRails> keys{};  // by the peer's rail
  uint32_t id = 0;
};

class RegionTable {
 public:
  RegionTable(uint32_t count_ranks, uint32_t max_regions)
      : count_ranks_(count_ranks), max_regions_(max_regions), blocks_((max_regions + kBlock - 1) / kBlock) {}

  uint32_t max_regions() const { return max_regions_; }

  // Returns null if there is no such region. `peer` is a rank; any id is allowed.
  const LocalRegion* find_local(uint32_t id) const {
    const Block* block = find_block(id);
    return block == nullptr ? nullptr : block->local[id % kBlock].find();
  }
  const RemoteRegion* find_remote(uint32_t peer, uint32_t id) const {
    const Block* block = find_block(id);
    return block == nullptr ? nullptr : block->remote[size_t{peer} * kBlock + id % kBlock].find();
  }

  // One thread at a time; ids must be in range. Returns false if the id is in use.
  bool add_local(uint32_t id, LocalRegion region) {
    return make_block(id).local[id % kBlock].publish(std::move(region));
  }
  bool add_remote(uint32_t peer, uint32_t id, const RemoteRegion& region) {
    return make_block(id).remote[size_t{peer} * kBlock + id % kBlock].publish(region);
  }
  void remove_local(uint32_t id) {
    if (blocks_[id / kBlock]) make_block(id).local[id % kBlock].withdraw();
  }
  void remove_remotes(uint32_t id) {
    if (!blocks_[id / kBlock]) return;
    for (uint32_t peer = 0; peer < count_ranks_; ++peer)
      make_block(id).remote[size_t{peer} * kBlock + id % kBlock].withdraw();
  }

 private:
  static constexpr uint32_t kBlock = 64;  // number of regions

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
  struct Block {
    explicit Block(uint32_t count_ranks) : local(kBlock), remote(size_t{count_ranks} * kBlock) {}
    std::vector<Entry<LocalRegion>> local;
    std::vector<Entry<RemoteRegion>> remote;  // the regions of a peer are contiguous
  };
  struct Slot {
    std::unique_ptr<Block> owned;
    std::atomic<Block*> published{nullptr};
    explicit operator bool() const { return owned != nullptr; }
  };

  const Block* find_block(uint32_t id) const {
    return id < max_regions_ ? blocks_[id / kBlock].published.load(std::memory_order_acquire) : nullptr;
  }
  Block& make_block(uint32_t id) {
    Slot& slot = blocks_[id / kBlock];
    if (!slot) {
      slot.owned = std::make_unique<Block>(count_ranks_);
      slot.published.store(slot.owned.get(), std::memory_order_release);
    }
    return *slot.owned;
  }

  const uint32_t count_ranks_, max_regions_;
  std::vector<Slot> blocks_;
};

inline bool is_inside(uint64_t region_bytes, uint64_t offset, uint64_t bytes) {
  return offset <= region_bytes && bytes <= region_bytes - offset;
}

}  // namespace verbena::transport
