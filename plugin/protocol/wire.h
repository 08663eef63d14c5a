// What the two ends of a connection write into each other's memory, and what an immediate says. Little
// endian.
//
// Sender memory that the receiver writes (RDMA WRITE): one ControlBlock. Grant k of the connection goes to
// entry k mod kMessageRing, one for every receive whose message has not already arrived; the credit line is
// overwritten whole. A Grant is one 64-byte aligned line whose last 8 bytes say that it is there. Counters in
// the credit line only grow (wrapping); the reader keeps the newer of what it knew and what it sees, so that
// a late overwrite is harmless.
#pragma once

#include <cstdint>
#include <optional>

namespace verbena::protocol {

inline constexpr uint32_t kMaxQueuePairs = 8;       // of one connection
inline constexpr uint32_t kMessageRing = 32;        // messages between "posted by the sender" and "consumed"
inline constexpr uint32_t kMaxChunks = 1024;        // of one message
inline constexpr uint32_t kDirectAlignBytes = 128;  // stripes start on LL128 lines

// Credits that ride on a grant, so that a connection whose messages are all direct needs no line for them:
// the counters of the credit line, of the queue pair that the grant travels on. A note makes up for all
// before it. Where messages are staged nobody reads every grant, and the note is empty.
struct CreditNote {
  static constexpr uint32_t kReturnedBits = 24;

  uint32_t consumed;
  uint32_t returned;  // the low bits of the queue pair's counter; its number above them

  static CreditNote make(uint32_t consumed, uint32_t queue_pair, uint32_t returned) {
    return {consumed, queue_pair << kReturnedBits | (returned & ((1U << kReturnedBits) - 1))};
  }
  uint32_t queue_pair() const { return returned >> kReturnedBits; }
  // The whole counter, which is less than half of the bits' range away from one that was known.
  uint32_t expand_returned(uint32_t known) const {
    constexpr uint32_t kShift = 32 - kReturnedBits;
    const auto ahead = static_cast<int32_t>((returned - known) << kShift) >> kShift;
    return known + static_cast<uint32_t>(ahead);
  }
};

struct alignas(64) Grant {
  uint64_t address;                      // where the message goes
  uint32_t remote_keys[kMaxQueuePairs];  // one for each of the receiver's rails
  uint64_t length_bytes;                 // room there
  CreditNote note;
  uint64_t sequence_plus_one;  // written last: message k's grant stands when this reads k + 1
};
static_assert(sizeof(Grant) == 64);

struct alignas(64) CreditLine {
  uint32_t returned[kMaxQueuePairs];  // receive entries given back so far, for each queue pair
  uint32_t consumed;                  // messages 0 .. consumed-1 are closed
  uint32_t reserved[7];
};
static_assert(sizeof(CreditLine) == 64);

struct ControlBlock {
  Grant grants[kMessageRing];
  CreditLine credits;
};
static_assert(sizeof(ControlBlock) == 64 * (kMessageRing + 1));

// The queue pair that short messages and grants stay on, so that it is warm. Both ends compute it from the
// number of the receiver's first queue pair. Devices number one by one or in steps: the multiplication (by
// 2^32 over the golden ratio) spreads either over the rails.
inline uint32_t choose_home(uint32_t queue_pair_number, uint32_t queue_pairs) {
  return (queue_pair_number * 0x9E3779B9U >> 16) % queue_pairs;
}

// One chunk of one message. Staged chunk i covers [i*page, i*page + length); a direct chunk was written to
// its place.
struct ChunkTag {
  uint16_t sequence;  // low bits of the message's number
  uint16_t index;     // below kMaxChunks
  bool last;          // index + 1 is the number of chunks
  bool direct;
};

inline uint32_t encode_tag(ChunkTag tag) {
  return static_cast<uint32_t>(tag.sequence) | (static_cast<uint32_t>(tag.index) << 16) |
         (tag.last ? 1U << 28 : 0U) | (tag.direct ? 1U << 29 : 0U);
}

// Whether it is the only chunk of its message, in its place.
inline bool is_whole_direct(uint32_t imm) {
  return imm >> 16 == encode_tag({0, 0, true, true}) >> 16;
}

// Empty if bits are set that this version does not know, or the index is out of range.
inline std::optional<ChunkTag> decode_tag(uint32_t imm) {
  ChunkTag tag{static_cast<uint16_t>(imm), static_cast<uint16_t>((imm >> 16) & 0xFFF), (imm >> 28 & 1) != 0,
               (imm >> 29 & 1) != 0};
  if ((imm >> 30) != 0 || tag.index >= kMaxChunks) return std::nullopt;
  return tag;
}

}  // namespace verbena::protocol
