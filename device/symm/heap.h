// The address space of a context. The address space has one slot for each rank whose memory is mapped,
// including this rank, and all slots have the same length. A window has the same offset in every slot. There
// are two kinds of heaps. Either the slots form one reserved address range, into which memory is mapped
// window by window. Or the slots and their memory are borrowed from another library.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "base/virtual_memory.h"
#include "device/symm/borrowed_heap.h"

namespace verbena::symm {

// Allocates ranges of [0, length). Ranks that make the same calls in the same order get the same offsets.
class OffsetPlan {
 public:
  explicit OffsetPlan(uint64_t length_bytes) : length_bytes_(length_bytes) {}

  // Allocates a range at the lowest possible offset. Returns nothing if there is no space.
  std::optional<uint64_t> take(uint64_t length_bytes);
  void give_back(uint64_t offset) { taken_.erase(offset); }

 private:
  uint64_t length_bytes_;
  std::map<uint64_t, uint64_t> taken_;  // offset to length
};

class Heap {
 public:
  // Reserves addresses. The sizes of slots and windows are multiples of `unit_bytes`, a power of two, and of
  // the memory's granularity.
  static base::Result<Heap> reserve(base::MemoryOwner owner, uint64_t slot_bytes, uint32_t count_slots,
                                    uint32_t own_slot, uint64_t unit_bytes = 1);
  // Makes a heap from a borrowed heap, with a slot for each rank whose memory is mapped. The other library's
  // heap must outlive the returned heap.
  static Heap borrow(base::MemoryOwner owner, const BorrowedHeap& borrowed);

  base::MemoryOwner owner() const { return owner_; }
  const HeapBackend& backend() const { return backend_; }
  bool is_borrowed() const { return range_.begin() == nullptr; }
  uint64_t slot_bytes() const { return slot_bytes_; }
  // The length of the range of symmetric addresses.
  uint64_t reach_bytes() const { return reach_bytes_; }
  uint64_t granularity_bytes() const { return granularity_bytes_; }
  std::byte* begin() const { return begin_; }
  std::byte* slot(uint32_t index) const { return begin_ + deltas_[index]; }
  // The difference in bytes between an address in the slot and the corresponding address in this rank's slot.
  int64_t delta_bytes(uint32_t index) const { return deltas_[index]; }
  OffsetPlan& offsets() { return offsets_; }

  // Allocates memory for a window. Returns an empty piece for a borrowed heap, which already has memory.
  base::Result<base::MemoryPiece> allocate(uint64_t length_bytes) const;
  // Fills mapped memory of this rank's slot with zeros. The owner's CUDA context must be current.
  base::Outcome fill_zero(uint64_t offset, uint64_t length_bytes) const;
  // Reads a word of this rank's slot. Kernels may write the word at the same time.
  base::Result<uint64_t> read_word(const uint64_t* address) const;

 private:
  Heap(base::MemoryOwner owner, std::byte* begin, uint64_t slot_bytes, uint64_t granularity_bytes);

  base::MemoryOwner owner_;
  HeapBackend backend_;
  base::AddressRange range_;  // empty if the heap is borrowed
  std::byte* begin_;
  std::vector<int64_t> deltas_;  // by slot
  uint64_t slot_bytes_, reach_bytes_, granularity_bytes_;
  OffsetPlan offsets_;
};

}  // namespace verbena::symm
