// What the two ends of a connection write into each other's memory. Little endian. What comes with it is told
// by immediates: immediate.h.
//
// Sender memory that the receiver writes (RDMA WRITE): one ControlBlock. Grant k of the connection goes to
// entry k mod kMessageRing, one for every receive whose message has not already arrived; the credit line is
// overwritten whole. A Grant is one 64-byte aligned line whose last 8 bytes say that it is there. Counters in
// the credit line only grow (wrapping); the reader keeps the newer of what it knew and what it sees, so that
// a late overwrite is harmless, if another follows: where queue pairs are out of order, one credit line at a
// time is under way, as nothing follows the last. There a grant also waits for the completion of the grant
// before it in the same entry. Only where nothing is staged it need not: each receive has its grant, and
// fewer of them are under way (kControlDepth) than there are entries, as long as none is written again.
//
// Who fills which receive. Where messages are staged, the sends and the receives of a connection meet in the
// order of posting. Where nothing is staged (Welcome::staging 0) they meet by tag: a send fills the oldest
// receive that is granted, free and has its tag, and takes that receive's number. A grouped receive (NCCL's
// irecv of up to kMaxGroup buffers) is therefore nothing on the wire: it is as many receives with numbers in
// a row, each with its grant, its chunks, its place in ArrivedRecord and its replay; the receiver alone knows
// that one request stands for them. Chunks carry the number of the receive, as ever, and no tag. Sends that
// find no receive are not numbered and take no place, so that however many of one tag the application has
// for later, those of another tag get through.
#pragma once

#include <cstdint>

namespace verbena::protocol {

// Of one connection, in this build. The two of a connection go by the smaller of both ends' numbers, which
// the handshake tells (Limits): whatever has an element for each queue pair or message is laid out for those.
inline constexpr uint32_t kMaxQueuePairs = 8;
inline constexpr uint32_t kMessageRing = 32;        // messages between "posted by the sender" and "consumed"
inline constexpr uint32_t kMaxRails = 8;            // of a device
inline constexpr uint32_t kMaxChunks = 1024;        // of one message
inline constexpr uint32_t kMaxGroup = 8;            // receives of one request
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
  uint64_t address;                 // where the message goes
  uint32_t remote_keys[kMaxRails];  // one for each of the receiver's rails
  uint64_t length_bytes;            // room there
  CreditNote note;
  uint64_t stamp;  // written last: message k's grant stands when the low half reads k's stamp

  // 31 bits of the number, and a bit that tells it from memory that nobody has written. The tag stands in the
  // same word: who reads that the grant is there has also read whom it is for.
  static constexpr uint64_t make_stamp(uint32_t sequence, int32_t tag) {
    return uint64_t{static_cast<uint32_t>(tag)} << 32 | low_stamp(sequence);
  }
  static constexpr uint32_t low_stamp(uint32_t sequence) { return sequence << 1 | 1; }
  int32_t tag() const { return static_cast<int32_t>(stamp >> 32); }
};
static_assert(sizeof(Grant) == 64);

// One for every eight queue pairs.
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
inline uint32_t choose_primary(uint32_t queue_pair_number, uint32_t queue_pairs) {
  return (queue_pair_number * 0x9E3779B9U >> 16) % queue_pairs;
}

}  // namespace verbena::protocol
