// How a message is cut. Staged: whole pages, so that any page of the receiver's pool takes any chunk. Direct:
// at most one stripe for each queue pair, all starting on a 128-byte boundary of the message, none smaller
// than the minimum stripe (the last one may be, by what the others were rounded up).
#pragma once

#include <algorithm>
#include <cstdint>

#include "protocol/wire.h"

namespace verbena::protocol {

inline constexpr uint64_t kMaxStripeBytes = uint64_t{1} << 30;  // every device takes messages this long

struct Chunk {
  uint64_t offset_bytes;
  uint32_t length_bytes;
};

struct ChunkPlan {
  uint64_t length_bytes = 0;  // of the message
  uint64_t stride_bytes = 1;  // chunk i starts at i * stride
  uint32_t count = 1;         // at least one: an empty message is one empty chunk

  Chunk chunk(uint32_t index) const {
    const uint64_t offset = index * stride_bytes;
    return {offset, static_cast<uint32_t>(std::min(stride_bytes, length_bytes - offset))};
  }
};

inline uint64_t divide_up(uint64_t value, uint64_t unit) {
  return (value + unit - 1) / unit;
}

inline ChunkPlan plan_staged(uint64_t length_bytes, uint32_t page_bytes) {
  const uint64_t pages = std::max<uint64_t>(1, divide_up(length_bytes, page_bytes));
  return {length_bytes, page_bytes, static_cast<uint32_t>(std::min<uint64_t>(pages, UINT32_MAX))};
}

inline ChunkPlan plan_direct(uint64_t length_bytes, uint32_t queue_pairs, uint64_t min_stripe_bytes) {
  const uint64_t worthwhile =
      std::clamp<uint64_t>(length_bytes / std::max<uint64_t>(1, min_stripe_bytes), 1, queue_pairs);
  const uint64_t stripes = std::max(worthwhile, divide_up(length_bytes, kMaxStripeBytes));
  const uint64_t stride =
      std::max<uint64_t>(1, divide_up(divide_up(length_bytes, stripes), kDirectAlignBytes)) *
      kDirectAlignBytes;
  return {length_bytes, stride,
          static_cast<uint32_t>(std::max<uint64_t>(1, divide_up(length_bytes, stride)))};
}

}  // namespace verbena::protocol
