// Splits a message into chunks. Each queue pair gets one region of the message (rail_share.h chooses its
// length), which is split further. A staged message is split into whole pages, so that any page of the
// receiver's pool can take any chunk. A direct message is split into as few stripes as the longest work
// request allows; stripes start on 128-byte boundaries of the message.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "protocol/wire.h"

namespace verbena::protocol {

// The maximum length of a stripe. Some devices support only shorter ones.
inline constexpr uint32_t kMaxStripeBytes = uint32_t{1} << 30;

using Shares = std::array<uint64_t, kMaxQueuePairs>;  // bytes of a message for each queue pair

struct Chunk {
  uint64_t offset_bytes;
  uint32_t length_bytes;
  uint16_t index;  // index in its tag
  bool last;
};

inline uint64_t divide_up(uint64_t value, uint64_t unit) {
  return (value + unit - 1) / unit;
}

// An empty message has one empty chunk.
inline uint64_t count_pages(uint64_t length_bytes, uint32_t page_bytes) {
  return std::max<uint64_t>(1, divide_up(length_bytes, page_bytes));
}

// The split of one message. The shares alone determine the position, the index and the queue pair of each
// chunk, so that a chunk can be identified after its queue pair has failed.
class Cut {
 public:
  // `page_bytes` is 0 for a direct message. Shares are multiples of a unit (a page, or 128 bytes), and their
  // sum is at least the length of the message; the last share is shortened. Regions are in the order of the
  // queue pairs. `max_stripe_bytes` limits the chunks of a direct message, and is a multiple of 128.
  void start(uint64_t length_bytes, uint32_t page_bytes, const Shares& shares,
             uint32_t max_stripe_bytes = kMaxStripeBytes) {
    max_stripe_bytes_ = max_stripe_bytes;
    length_bytes_ = length_bytes;
    page_bytes_ = page_bytes;
    left_bytes_ = 0;
    count_ = 0;
    const uint64_t wanted = std::max<uint64_t>(1, length_bytes);  // an empty message has a chunk too
    for (uint32_t q = 0; q < kMaxQueuePairs; ++q) {
      next_bytes_[q] = left_bytes_;
      left_bytes_ = end_bytes_[q] = std::min(wanted, left_bytes_ + shares[q]);
      count_ += count_pieces(q);
    }
  }

  // The whole message on one queue pair.
  void start_one(uint64_t length_bytes, uint32_t page_bytes, uint32_t queue_pair,
                 uint32_t max_stripe_bytes = kMaxStripeBytes) {
    Shares shares{};
    shares[queue_pair] = std::max<uint64_t>(1, length_bytes);
    start(length_bytes, page_bytes, shares, max_stripe_bytes);
  }

  uint32_t count() const { return count_; }  // number of chunks
  bool is_empty() const { return left_bytes_ == 0; }
  uint64_t left_bytes(uint32_t queue_pair) const { return end_bytes_[queue_pair] - next_bytes_[queue_pair]; }
  uint32_t left_chunks(uint32_t queue_pair) const {
    return static_cast<uint32_t>(divide_up(left_bytes(queue_pair), piece_bytes(queue_pair)));
  }

  // Returns the next chunk. Call it while some of this queue pair's region is left.
  Chunk take(uint32_t queue_pair) {
    const uint64_t bytes = std::min(piece_bytes(queue_pair), left_bytes(queue_pair));
    const uint64_t piece = (next_bytes_[queue_pair] - begin_bytes(queue_pair)) / piece_bytes(queue_pair);
    const Chunk chunk = make_chunk(next_bytes_[queue_pair], bytes, first_index(queue_pair) + piece);
    next_bytes_[queue_pair] += bytes;
    left_bytes_ -= bytes;
    return chunk;
  }

  // The rest of this queue pair's region is not carried by any queue pair.
  void abandon(uint32_t queue_pair) {
    left_bytes_ -= left_bytes(queue_pair);
    next_bytes_[queue_pair] = end_bytes_[queue_pair];
  }

  // For a chunk below count(), taken or not.
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
