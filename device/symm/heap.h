// The addresses of a context: a slot of equal length for each rank that loads and stores reach, this one
// among them. A window lies at the same offset in every slot. The slots are one range of our own, into which
// memory is mapped window by window; or borrowed, with all their memory.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "base/virtual_memory.h"
#include "device/symm/borrowed_heap.h"

namespace verbena::symm {

// Which parts of [0, length) are taken. Ranks that make the same calls in the same order get the same
// offsets.
class OffsetPlan {
 public:
  explicit OffsetPlan(uint64_t length_bytes) : length_bytes_(length_bytes) {}

  // The lowest that has room.
  std::optional<uint64_t> take(uint64_t length_bytes);
  void give_back(uint64_t offset) { taken_.erase(offset); }

 private:
  uint64_t length_bytes_;
  std::map<uint64_t, uint64_t> taken_;  // offset to length
};

class Heap {
 public:
  // Slots and windows are multiples of `unit_bytes`, a power of two, and of what the memory needs.
  static base::Result<Heap> reserve(base::MemoryOwner owner, uint64_t slot_bytes, uint32_t count_slots,
                                    uint32_t own_slot, uint64_t unit_bytes = 1);
  // A slot for each rank with a delta. What it is borrowed from outlives it.
  static Heap borrow(base::MemoryOwner owner, const BorrowedHeap& borrowed);

  base::MemoryOwner owner() const { return owner_; }
  const HeapBackend& backend() const { return backend_; }
  bool is_borrowed() const { return range_.begin() == nullptr; }
  uint64_t slot_bytes() const { return slot_bytes_; }
  // Up to which addresses are symmetric.
  uint64_t reach_bytes() const { return reach_bytes_; }
  uint64_t granularity_bytes() const { return granularity_bytes_; }
  std::byte* begin() const { return begin_; }
  std::byte* slot(uint32_t index) const { return begin_ + deltas_[index]; }
  // From an address of ours to the slot's, in bytes.
  int64_t delta_bytes(uint32_t index) const { return deltas_[index]; }
  OffsetPlan& offsets() { return offsets_; }

  // Memory for a window; none if it is there already, as in a borrowed heap.
  base::Result<base::MemoryPiece> allocate(uint64_t length_bytes) const;
  // What has memory, of our own slot; with the owner's context current.
  base::Outcome fill_zero(uint64_t offset, uint64_t length_bytes) const;
  // As it is at this moment, of our own slot; kernels may write it meanwhile.
  base::Result<uint64_t> read_word(const uint64_t* address) const;

 private:
  Heap(base::MemoryOwner owner, std::byte* begin, uint64_t slot_bytes, uint64_t granularity_bytes);

  base::MemoryOwner owner_;
  HeapBackend backend_;
  base::AddressRange range_;  // the slots, unless they are borrowed
  std::byte* begin_;
  std::vector<int64_t> deltas_;  // of each slot
  uint64_t slot_bytes_, reach_bytes_, granularity_bytes_;
  OffsetPlan offsets_;
};

}  // namespace verbena::symm
