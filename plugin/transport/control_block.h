// The sender's ControlBlock (protocol/wire.h) in memory that every rail may be asked to write.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <span>

#include "base/status.h"
#include "protocol/sequence.h"
#include "protocol/wire.h"
#include "verbs/queues.h"

namespace verbena::transport {

class ControlMemory {
 public:
  static base::Result<ControlMemory> create(std::span<verbs::Device* const> rails);

  uint64_t address() const { return reinterpret_cast<uintptr_t>(block_.get()); }
  uint32_t remote_key(uint32_t rail) const { return regions_[rail].remote_key(); }

  // Message `sequence`'s grant, once it stands. The acquire load of its last word orders the rest of the
  // line.
  bool read_grant(uint32_t sequence, protocol::Grant& grant) const {
    protocol::Grant& entry = block_->grants[sequence % protocol::kMessageRing];
    const uint64_t stamp = std::atomic_ref(entry.sequence_plus_one).load(std::memory_order_acquire);
    if (stamp != uint64_t{sequence} + 1) return false;
    grant = entry;
    return true;
  }
  // The credits on the grant of message `*sequence`, or of a later one that has taken its place, once it
  // stands: true, and *sequence goes past it. For connections where every message is granted, in order. The
  // peer may write any number as the stamp: whoever reads on in a loop bounds how far.
  bool read_note(uint32_t* sequence, protocol::CreditNote& note) const {
    protocol::Grant& entry = block_->grants[*sequence % protocol::kMessageRing];
    const uint64_t stamp = std::atomic_ref(entry.sequence_plus_one).load(std::memory_order_acquire);
    if (stamp == 0 || protocol::is_before(static_cast<uint32_t>(stamp - 1), *sequence)) return false;
    note = entry.note;
    *sequence = static_cast<uint32_t>(stamp);
    return true;
  }
  uint32_t read_returned(uint32_t queue_pair) const {
    return std::atomic_ref(block_->credits.returned[queue_pair]).load(std::memory_order_acquire);
  }
  uint32_t read_consumed() const {
    return std::atomic_ref(block_->credits.consumed).load(std::memory_order_acquire);
  }

 private:
  struct Page : protocol::ControlBlock {};
  std::unique_ptr<Page> block_;
  std::array<verbs::MemoryRegion, verbs::kMaxRails> regions_;  // destroyed before the block
};

}  // namespace verbena::transport
