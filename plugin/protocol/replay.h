// The chunks that a sender must send again, for each message of the ring, and the queue pair of each chunk
// that was sent again before. Created at the first failure of a connection, so that it costs nothing before.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

#include "protocol/chunking.h"
#include "protocol/recovery_record.h"
#include "protocol/wire.h"

namespace verbena::protocol {

class Replay {
 public:
  // A new message uses this slot of the ring; none of its chunks was sent again.
  void forget(uint32_t slot) {
    Entry& entry = entries_[slot];
    if (!entry.is_used) return;
    pending_ -= entry.pending;
    entry = {};
  }

  // Returns whether the failed `queue_pair` carried chunk `index`. `by_cut` is the queue pair that carried it
  // first.
  bool is_carried_by(uint32_t slot, uint32_t index, uint32_t by_cut, uint32_t queue_pair) const {
    const Entry& entry = entries_[slot];
    const uint8_t moved = entry.is_used ? entry.moved_to[index] : kNotMoved;
    return (moved == kNotMoved ? by_cut : moved) == queue_pair;
  }
  void add(uint32_t slot, uint32_t index) {
    Entry& entry = entries_[slot];
    if (!entry.is_used) {
      entry.is_used = true;
      entry.moved_to.fill(kNotMoved);
    }
    uint64_t& word = entry.missing[index / 64];
    const uint64_t bit = uint64_t{1} << (index % 64);
    if ((word & bit) != 0) return;
    word |= bit;
    entry.moved_to[index] = kNobody;
    ++entry.pending;
    ++pending_;
  }

  bool is_empty() const { return pending_ == 0; }
  uint32_t pending(uint32_t slot) const { return entries_[slot].pending; }
  // Call this while chunks of the slot are pending.
  uint32_t first(uint32_t slot) const {
    uint32_t word = 0;
    while (entries_[slot].missing[word] == 0) ++word;
    return word * 64 + static_cast<uint32_t>(std::countr_zero(entries_[slot].missing[word]));
  }
  void note_sent(uint32_t slot, uint32_t index, uint32_t queue_pair) {
    Entry& entry = entries_[slot];
    entry.missing[index / 64] &= ~(uint64_t{1} << (index % 64));
    entry.moved_to[index] = static_cast<uint8_t>(queue_pair);
    --entry.pending;
    --pending_;
  }

 private:
  static constexpr uint8_t kNotMoved = 0xFF, kNobody = 0xFE;

  struct Entry {
    bool is_used = false;
    uint32_t pending = 0;
    ArrivedRecord::Bitmap missing{};
    std::array<uint8_t, kMaxChunks> moved_to{};
  };

  std::array<Entry, kMessageRing> entries_{};
  uint32_t pending_ = 0;
};

}  // namespace verbena::protocol
