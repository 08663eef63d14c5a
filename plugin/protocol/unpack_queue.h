// The receiver's side of NCCL's unpack queue (include/verbena/unpack_abi.h). It has 16 slots, which are taken
// in the order of posting by receives whose kernel advances the head. Each slot holds the descriptors of one
// staged message.
//
// A slot is free, then taken (cnt 0), then published (cnt > 0, or cnt 0 for an empty or direct message), then
// free again. cnt is not zero only while a slot is published, because an aborting kernel would loop forever
// on a stale count.
#pragma once

#include <atomic>
#include <cstdint>

#include "verbena/unpack_abi.h"

namespace verbena::protocol {

class UnpackQueue {
 public:
  // `meta` is filled with zeros, outlives the queue, and is read by the GPU. Only the first `descriptors` of
  // each slot belong to this queue.
  explicit UnpackQueue(NetUnpackMeta* meta, uint32_t descriptors = kUnpackMaxDescriptors)
      : meta_(meta), descriptors_(descriptors) {}

  bool has_free_slot() const { return (busy_ >> (next_ % kUnpackQueueDepthSlots) & 1) == 0; }

  // Returns the slot of the next receive that consumes one. Call it only if has_free_slot().
  uint32_t take_slot() {
    const uint32_t slot = next_++ % kUnpackQueueDepthSlots;
    busy_ |= 1U << slot;
    pending_[slot] = 0;
    return slot;
  }

  // Adds one piece, split so that many warps share it. Returns false if the slot has no space for it.
  bool append(uint32_t slot, uint32_t source_offset, uint64_t destination_offset, uint32_t length_bytes,
              uint32_t piece_bytes) {
    while (length_bytes != 0) {
      if (pending_[slot] == descriptors_) return false;
      const uint32_t length = length_bytes < piece_bytes ? length_bytes : piece_bytes;
      meta_->mem[slot][pending_[slot]++] = LoadMeta{source_offset, length, destination_offset};
      source_offset += length;
      destination_offset += length;
      length_bytes -= length;
    }
    return true;
  }

  uint32_t pending(uint32_t slot) const { return pending_[slot]; }

  // Makes all appended descriptors visible together with the count (release order: descriptors before the
  // count). The kernel waits for NCCL's own store of its tail, which follows after a full fence.
  void publish(uint32_t slot) {
    std::atomic_ref<uint64_t>(meta_->cnt[slot]).store(pending_[slot], std::memory_order_release);
  }

  void clear(uint32_t slot) {
    std::atomic_ref<uint64_t>(meta_->cnt[slot]).store(0, std::memory_order_release);
    busy_ &= ~(1U << slot);
  }

 private:
  NetUnpackMeta* meta_;
  uint32_t descriptors_;
  uint64_t next_ = 0;
  uint32_t busy_ = 0;
  uint32_t pending_[kUnpackQueueDepthSlots] = {};
};

}  // namespace verbena::protocol
