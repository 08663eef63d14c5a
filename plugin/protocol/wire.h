// The memory formats by which the two ends of a connection write into each other's memory. Little endian.
// Chunks of data are announced by immediates: immediate.h.
//
// The receiver writes one ControlBlock in the sender's memory (RDMA WRITE). Grant k of the connection is
// written to entry k mod kMessageRing. There is one grant for each receive whose message has not already
// arrived. The credit line is overwritten as a whole. A Grant is one 64-byte aligned line whose last 8 bytes
// show that it has arrived. The counters in the credit line only increase (wrapping). The reader keeps the
// newer one of the known and the read value, so that a delayed write is harmless if another write follows. If
// queue pairs are out of order, only one credit line at a time is in flight, because no write follows the
// last one. In this case a grant also waits for the completion of the previous grant in the same entry. This
// is not necessary in connections without staging: each receive has its grant, and fewer grants are in flight
// (kControlDepth) than there are entries, as long as none is written again.
//
// Matching of sends and receives: with staging, the sends and receives of a connection are matched in the
// order of posting. Without staging (Welcome::staging 0) they are matched by tag: a send fills the oldest
// receive that is granted, free and has its tag, and takes the number of that receive. A grouped receive
// (NCCL's irecv of up to kMaxGroup buffers) is therefore not visible in the protocol. It is a number of
// receives with consecutive numbers, each with its own grant, chunks, bits in ArrivedRecord, and replay. Only
// the receiver knows that they belong to one request. Chunks carry the number of the receive, and no tag.
// Sends that find no receive get no number and no ring entry, so that any number of early sends with one tag
// cannot block sends with another tag.
#pragma once

#include <cstdint>

namespace verbena::protocol {

// Limits of one connection, in this build. A connection uses the smaller limits of both ends, which the
// handshake exchanges (Limits). All arrays with an element for each queue pair or message have these lengths.
inline constexpr uint32_t kMaxQueuePairs = 8;
inline constexpr uint32_t kMessageRing = 32;        // messages between "posted by the sender" and "consumed"
inline constexpr uint32_t kMaxRails = 8;            // of a device
inline constexpr uint32_t kMaxChunks = 1024;        // of one message
inline constexpr uint32_t kMaxGroup = 8;            // receives of one request
inline constexpr uint32_t kDirectAlignBytes = 128;  // stripes start on LL128 lines

// Credits in a grant, so that a connection whose messages are all direct needs no credit line: the credit
// line's counters, for the queue pair on which the grant is sent. A note replaces all earlier ones. With
// staging not every grant is read, and the note is empty.
struct CreditNote {
  static constexpr uint32_t kReturnedBits = 24;

  uint32_t consumed;
  uint32_t returned;  // low bits of the queue pair's counter; above them its number

  static CreditNote make(uint32_t consumed, uint32_t queue_pair, uint32_t returned) {
    return {consumed, queue_pair << kReturnedBits | (returned & ((1U << kReturnedBits) - 1))};
  }
  uint32_t queue_pair() const { return returned >> kReturnedBits; }
  // Returns the whole counter. It differs from a known value by less than half of the bits' range.
  uint32_t expand_returned(uint32_t known) const {
    constexpr uint32_t kShift = 32 - kReturnedBits;
    const auto ahead = static_cast<int32_t>((returned - known) << kShift) >> kShift;
    return known + static_cast<uint32_t>(ahead);
  }
};

struct alignas(64) Grant {
  uint64_t address;                 // destination of the message
  uint32_t remote_keys[kMaxRails];  // one for each rail of the receiver
  uint64_t length_bytes;            // capacity at the destination
  CreditNote note;
  uint64_t stamp;  // written last: the grant of message k has arrived when the low half is k's stamp

  // 31 bits of the number, and a bit that distinguishes it from memory that was never written. The tag is in
  // the same word, so a reader that sees the stamp also sees the tag.
  static constexpr uint64_t make_stamp(uint32_t sequence, int32_t tag) {
    return uint64_t{static_cast<uint32_t>(tag)} << 32 | low_stamp(sequence);
  }
  static constexpr uint32_t low_stamp(uint32_t sequence) { return sequence << 1 | 1; }
  int32_t tag() const { return static_cast<int32_t>(stamp >> 32); }
};
static_assert(sizeof(Grant) == 64);

// One for every eight queue pairs.
struct alignas(64) CreditLine {
  uint32_t returned[kMaxQueuePairs];  // returned receive entries of each queue pair, in total
  uint32_t consumed;                  // messages 0 .. consumed-1 are closed
  uint32_t reserved[7];
};
static_assert(sizeof(CreditLine) == 64);

struct ControlBlock {
  Grant grants[kMessageRing];
  CreditLine credits;
};
static_assert(sizeof(ControlBlock) == 64 * (kMessageRing + 1));

// Returns the queue pair that short messages and grants always use, so that it is warm. Both ends compute it
// from the number of the receiver's first queue pair. Devices assign numbers one by one or in steps; the
// multiplication (by 2^32 divided by the golden ratio) distributes both over the rails.
inline uint32_t choose_primary(uint32_t queue_pair_number, uint32_t queue_pairs) {
  return (queue_pair_number * 0x9E3779B9U >> 16) % queue_pairs;
}

}  // namespace verbena::protocol
