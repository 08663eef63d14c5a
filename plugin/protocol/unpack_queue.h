// The receiver's side of NCCL's unpack queue (include/verbena/unpack_abi.h): 16 slots, taken in posting order
// by the receives whose kernel advances its head, each holding the descriptors of one staged message.
//
// A slot is Free, Taken (cnt 0), Published (cnt > 0 or an empty/direct message: cnt 0), Free again. cnt is
// non-zero only while Published: an aborting kernel loops for ever on a stale one.
#pragma once

#include <atomic>
#include <cstdint>

#include "verbena/unpack_abi.h"

namespace verbena::protocol {

class UnpackQueue {
 public:
  // `meta` is zeroed, outlives the queue, and is read by the GPU. Only the first `descriptors` of each slot
  // are ours.
  explicit UnpackQueue(NetUnpackMeta* meta, uint32_t descriptors = kUnpackMaxDescriptors)
      : meta_(meta), descriptors_(descriptors) {}

  bool has_free_slot() const { return (busy_ >> (next_ % kUnpackQueueDepthSlots) & 1) == 0; }

  // The slot of the next receive that consumes one; has_free_slot() holds.
  uint32_t take_slot() {
    const uint32_t slot = next_++ % kUnpackQueueDepthSlots;
    busy_ |= 1U << slot;
    pending_[slot] = 0;
    return slot;
  }

  // Adds one piece, cut so that many warps share it; false if the slot has no room for it left.
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

  // Everything appended becomes visible together with the count; NCCL's own store of its tail, after a full
  // fence, is what the kernel waits for. Release: descriptors before count.
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
