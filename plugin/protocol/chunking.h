// How a message is cut. Each queue pair gets one region of it (rail_share.h says how much), cut in turn:
// staged into whole pages, so that any page of the receiver's pool takes any chunk; direct into as few
// stripes as the longest work request allows, which start on 128-byte boundaries of the message.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "protocol/wire.h"

namespace verbena::protocol {

inline constexpr uint32_t kMaxStripeBytes = uint32_t{1} << 30;  // of devices that take messages this long

using Shares = std::array<uint64_t, kMaxQueuePairs>;  // bytes of a message for each queue pair

struct Chunk {
  uint64_t offset_bytes;
  uint32_t length_bytes;
  uint16_t index;  // of its tag
  bool last;
};

inline uint64_t divide_up(uint64_t value, uint64_t unit) {
  return (value + unit - 1) / unit;
}

// An empty message is one empty chunk.
inline uint64_t count_pages(uint64_t length_bytes, uint32_t page_bytes) {
  return std::max<uint64_t>(1, divide_up(length_bytes, page_bytes));
}

// One message, cut. Which chunk is where, which index it has and who carries it follows from the shares
// alone, so that a chunk can be named again after its queue pair has failed.
class Cut {
 public:
  // `page_bytes`: 0 for a direct message. Shares are whole units (a page, 128 bytes) and make at least the
  // message; what is too much is missing at the end. Regions follow one another in the order of the queue
  // pairs. `max_stripe_bytes`: of what is direct; a multiple of 128.
  void start(uint64_t length_bytes, uint32_t page_bytes, const Shares& shares,
             uint32_t max_stripe_bytes = kMaxStripeBytes) {
    max_stripe_bytes_ = max_stripe_bytes;
    length_bytes_ = length_bytes;
    page_bytes_ = page_bytes;
    left_bytes_ = 0;
    count_ = 0;
    const uint64_t wanted = std::max<uint64_t>(1, length_bytes);  // an empty message: a chunk all the same
    for (uint32_t q = 0; q < kMaxQueuePairs; ++q) {
      next_bytes_[q] = left_bytes_;
      left_bytes_ = end_bytes_[q] = std::min(wanted, left_bytes_ + shares[q]);
      count_ += count_pieces(q);
    }
  }

  // Everything over one queue pair.
  void start_one(uint64_t length_bytes, uint32_t page_bytes, uint32_t queue_pair,
                 uint32_t max_stripe_bytes = kMaxStripeBytes) {
    Shares shares{};
    shares[queue_pair] = std::max<uint64_t>(1, length_bytes);
    start(length_bytes, page_bytes, shares, max_stripe_bytes);
  }

  uint32_t count() const { return count_; }  // of chunks
  bool is_empty() const { return left_bytes_ == 0; }
  uint64_t left_bytes(uint32_t queue_pair) const { return end_bytes_[queue_pair] - next_bytes_[queue_pair]; }
  uint32_t left_chunks(uint32_t queue_pair) const {
    return static_cast<uint32_t>(divide_up(left_bytes(queue_pair), piece_bytes(queue_pair)));
  }

  // While something is left for this queue pair.
  Chunk take(uint32_t queue_pair) {
    const uint64_t bytes = std::min(piece_bytes(queue_pair), left_bytes(queue_pair));
    const uint64_t piece = (next_bytes_[queue_pair] - begin_bytes(queue_pair)) / piece_bytes(queue_pair);
    const Chunk chunk = make_chunk(next_bytes_[queue_pair], bytes, first_index(queue_pair) + piece);
    next_bytes_[queue_pair] += bytes;
    left_bytes_ -= bytes;
    return chunk;
  }

  // What is left there is nobody's any more.
  void abandon(uint32_t queue_pair) {
    left_bytes_ -= left_bytes(queue_pair);
    next_bytes_[queue_pair] = end_bytes_[queue_pair];
  }

  // Of a chunk below count(), taken or not.
  uint32_t carrier_of(uint32_t index) const {
    uint32_t q = 0;
    for (uint32_t first = 0; index - first >= count_pieces(q); ++q) first += count_pieces(q);
    return q;
  }
  Chunk chunk_at(uint32_t index) const {
    const uint32_t q = carrier_of(index);
    const uint64_t begin = begin_bytes(q) + (index - first_index(q)) * piece_bytes(q);
    return make_chunk(begin, std::min(piece_bytes(q), end_bytes_[q] - begin), index);
  }

 private:
  uint64_t begin_bytes(uint32_t queue_pair) const { return queue_pair == 0 ? 0 : end_bytes_[queue_pair - 1]; }
  uint64_t piece_bytes(uint32_t queue_pair) const {
    if (page_bytes_ != 0) return page_bytes_;
    const uint64_t region = end_bytes_[queue_pair] - begin_bytes(queue_pair);
    if (region <= max_stripe_bytes_) return std::max<uint64_t>(1, region);
    const uint64_t even = divide_up(region, divide_up(region, max_stripe_bytes_));
    return divide_up(even, kDirectAlignBytes) * kDirectAlignBytes;
  }
  uint32_t count_pieces(uint32_t queue_pair) const {
    const uint64_t region = end_bytes_[queue_pair] - begin_bytes(queue_pair);
    return region == 0 ? 0 : static_cast<uint32_t>(divide_up(region, piece_bytes(queue_pair)));
  }
  uint32_t first_index(uint32_t queue_pair) const {
    if (page_bytes_ != 0) return static_cast<uint32_t>(begin_bytes(queue_pair) / page_bytes_);
    uint32_t first = 0;
    for (uint32_t q = 0; q < queue_pair; ++q) first += count_pieces(q);
    return first;
  }
  Chunk make_chunk(uint64_t offset, uint64_t bytes, uint64_t index) const {
    return {offset, static_cast<uint32_t>(std::min(bytes, length_bytes_ - offset)),
            static_cast<uint16_t>(index), index + 1 == count_};
  }

  Shares next_bytes_{}, end_bytes_{};
  uint64_t length_bytes_ = 0, left_bytes_ = 0;
  uint32_t page_bytes_ = 0, max_stripe_bytes_ = kMaxStripeBytes, count_ = 0;
};

}  // namespace verbena::protocol
