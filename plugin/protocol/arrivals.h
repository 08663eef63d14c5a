// Records which chunks of a message have arrived. Chunks come in any order and, after a replay, more than
// once.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "protocol/immediate.h"

namespace verbena::protocol {

enum class Arrival : uint8_t { kNew, kDuplicate, kInvalid };

class Arrivals {
 public:
  // Clears only what was used, because most messages have one chunk.
  void reset() {
    bitmap_[0] = 0;
    if (highest_ >= 64) [[unlikely]]
      std::fill_n(bitmap_.begin() + 1, highest_ / 64, 0);
    bytes_ = 0;
    seen_ = total_ = highest_ = 0;
    direct_ = is_complete_ = false;
  }

  // Returns kInvalid if the chunks contradict each other, because the peer is faulty: two last chunks, a
  // chunk after the last one, too many chunks, or staged and direct chunks.
  Arrival record(const ChunkTag& tag, uint32_t length_bytes) {
    if (seen_ != 0 && tag.direct != direct_) return Arrival::kInvalid;
    const uint32_t end = total_ != 0 ? total_ : kMaxChunks;
    if (tag.last ? (total_ != 0 && total_ != tag.index + 1U) || highest_ > tag.index : tag.index + 1U >= end)
      return Arrival::kInvalid;
    uint64_t& word = bitmap_[tag.index / 64];
    const uint64_t bit = uint64_t{1} << (tag.index % 64);
    if ((word & bit) != 0) return Arrival::kDuplicate;
    word |= bit;
    direct_ = tag.direct;
    if (tag.index > highest_) highest_ = tag.index;
    if (tag.last) total_ = static_cast<uint16_t>(tag.index + 1);
    is_complete_ = ++seen_ == total_;  // FAULT(arrival_counts_twice)
    bytes_ += length_bytes;
    return Arrival::kNew;
  }

  // Records the only chunk of a message of which no chunk was recorded yet.
  void record_whole(uint32_t length_bytes, bool is_direct) {
    bitmap_[0] = seen_ = total_ = 1;
    is_complete_ = true;
    bytes_ = length_bytes;
    direct_ = is_direct;
  }

  bool is_complete() const { return is_complete_; }
  bool is_empty() const { return seen_ == 0; }
  bool is_direct() const { return direct_; }
  const std::array<uint64_t, kMaxChunks / 64>& bitmap() const { return bitmap_; }
  uint64_t bytes() const { return bytes_; }

 private:
  std::array<uint64_t, kMaxChunks / 64> bitmap_{};
  uint64_t bytes_ = 0;
  uint16_t seen_ = 0, total_ = 0, highest_ = 0;  // total_: 0 until the last chunk has arrived
  bool direct_ = false;
  bool is_complete_ = false;
};

}  // namespace verbena::protocol
