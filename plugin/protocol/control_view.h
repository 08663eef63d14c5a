// Reads the sender's ControlBlock (wire.h), which the peer may write by RDMA at any time. The acquire load of
// the last word of a grant orders the loads of the rest of its line.
#pragma once

#include <atomic>
#include <cstdint>

#include "protocol/sequence.h"
#include "protocol/wire.h"

namespace verbena::protocol {

class ControlView {
 public:
  // The block must outlive this object.
  explicit ControlView(ControlBlock* block) : block_(block) {}

  // Reads the grant of message `sequence`, if it has arrived.
  bool read_grant(uint32_t sequence, Grant& grant) const {
    Grant& entry = entry_of(sequence);
    if (static_cast<uint32_t>(load_stamp(entry)) != Grant::low_stamp(sequence)) return false;
    grant = entry;
    return true;
  }
  // Returns whether the grant has arrived, and its tag.
  bool has_grant(uint32_t sequence, int32_t* tag) const {
    const uint64_t stamp = load_stamp(entry_of(sequence));
    *tag = static_cast<int32_t>(stamp >> 32);
    return static_cast<uint32_t>(stamp) == Grant::low_stamp(sequence);
  }
  // Reads the credits in the grant of message `*sequence`, or of a later message that has replaced it.
  // Returns true if one has arrived, and moves *sequence past it. For connections in which every message is
  // granted, in order. The peer may write any stamp, so a caller that reads in a loop must limit how far it
  // reads.
  bool read_note(uint32_t* sequence, CreditNote& note) const {
    Grant& entry = entry_of(*sequence);
    const auto stamp = static_cast<uint32_t>(load_stamp(entry));
    const int32_t ahead = static_cast<int32_t>(stamp - (*sequence << 1)) >> 1;  // difference of 31 bits
    if ((stamp & 1) == 0 || ahead < 0) return false;
    note = entry.note;
    *sequence += static_cast<uint32_t>(ahead) + 1;
    return true;
  }
  uint32_t read_returned(uint32_t queue_pair) const {
    return std::atomic_ref(block_->credits.returned[queue_pair]).load(std::memory_order_acquire);
  }
  uint32_t read_consumed() const {
    return std::atomic_ref(block_->credits.consumed).load(std::memory_order_acquire);
  }

 private:
  Grant& entry_of(uint32_t sequence) const { return block_->grants[sequence % kMessageRing]; }
  static uint64_t load_stamp(Grant& entry) {
    return std::atomic_ref(entry.stamp).load(std::memory_order_acquire);
  }

  ControlBlock* block_;
};

}  // namespace verbena::protocol
