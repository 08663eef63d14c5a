#include "device/symm/heap.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/log.h"

namespace verbena::symm {

std::optional<uint64_t> OffsetPlan::take(uint64_t length_bytes) {
  uint64_t offset = 0;
  for (const auto& [begin, bytes] : taken_) {
    if (begin - offset >= length_bytes) break;
    offset = begin + bytes;
  }
  if (length_bytes == 0 || length_bytes > length_bytes_ - offset) return std::nullopt;
  taken_.emplace(offset, length_bytes);
  return offset;
}

base::Result<Heap> Heap::reserve(base::MemoryOwner owner, uint64_t slot_bytes, uint32_t count_slots,
                                 uint32_t own_slot, uint64_t unit_bytes) {
  auto granularity = base::measure_granularity(owner);
  if (!granularity) return granularity.error();
  granularity = std::max(*granularity, unit_bytes);
  slot_bytes = (slot_bytes + *granularity - 1) / *granularity * *granularity;
  auto range = base::AddressRange::reserve(owner, slot_bytes * count_slots);
  if (!range) return range.error();
  Heap heap(owner, range->begin() + own_slot * slot_bytes, slot_bytes, *granularity);
  for (uint32_t slot = 0; slot < count_slots; ++slot)
    heap.deltas_.push_back((int64_t{slot} - int64_t{own_slot}) * static_cast<int64_t>(slot_bytes));
  heap.range_ = std::move(*range);
  return heap;
}

Heap Heap::borrow(base::MemoryOwner owner, const BorrowedHeap& borrowed) {
  Heap heap(owner, borrowed.begin, borrowed.length_bytes, kBorrowedUnitBytes);
  heap.backend_ = borrowed.backend;
  heap.reach_bytes_ = std::max(borrowed.reach_bytes, borrowed.length_bytes);
  std::copy_if(borrowed.deltas.begin(), borrowed.deltas.end(), std::back_inserter(heap.deltas_),
               [](int64_t delta) { return delta != kSymmOutOfReach; });
  return heap;
}

Heap::Heap(base::MemoryOwner owner, std::byte* begin, uint64_t slot_bytes, uint64_t granularity_bytes)
    : owner_(owner),
      begin_(begin),
      slot_bytes_(slot_bytes),
      reach_bytes_(slot_bytes),
      granularity_bytes_(granularity_bytes),
      offsets_(slot_bytes) {}

base::Result<base::MemoryPiece> Heap::allocate(uint64_t length_bytes) const {
  if (length_bytes > slot_bytes_) {
    return base::fail(
        base::Status::kInvalidArgument, "symm: a window of %llu bytes exceeds the heap of %llu bytes%s",
        static_cast<unsigned long long>(length_bytes), static_cast<unsigned long long>(slot_bytes_),
        is_borrowed() ? "" : " (VERBENA_SYMM_HEAP_BYTES)");
  }
  if (is_borrowed()) return base::MemoryPiece();
  return base::MemoryPiece::allocate(owner_, length_bytes);
}

base::Outcome Heap::fill_zero(uint64_t offset, uint64_t length_bytes) const {
  return base::fill_zero(owner_, begin_ + offset, length_bytes);
}

base::Result<uint64_t> Heap::read_word(const uint64_t* address) const {
  if (owner_.gpu == base::kNoGpu) return __atomic_load_n(address, __ATOMIC_RELAXED);
  uint64_t word = 0;
  const auto* const begin = reinterpret_cast<const std::byte*>(address);
  if (auto read = base::read_memory(owner_, begin, &word, sizeof(word)); !read) return read.error();
  return word;
}

}  // namespace verbena::symm
