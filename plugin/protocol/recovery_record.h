// The records that the two ends of a connection exchange over the control socket of the handshake when a
// queue pair has failed. Each queue pair that uses a position is one generation. A record is about one queue
// pair and one generation. recovery.h defines the order of the records. Little endian; every field from
// outside is checked.
#pragma once

#include <array>
#include <cstdint>

#include "protocol/handshake.h"
#include "protocol/wire.h"

namespace verbena::protocol {

enum class RecoveryKind : uint8_t {
  kDown = 1,     // both directions: this queue pair is in the error state and has nothing in flight
  kArrived = 2,  // receiver: both are; these chunks have arrived. An ArrivedRecord follows
  kOffer = 3,    // sender: a new queue pair for the next generation
  kAnswer = 4,   // receiver: the peer queue pair, connected
  kRefusal = 5,  // receiver: no queue pair can be created now
  kLive = 6,     // sender: the new queue pair works
};

struct RecoveryRecord {
  static constexpr uint32_t kMagic = 0x56524245;

  uint32_t magic = kMagic;
  RecoveryKind kind{};
  uint8_t queue_pair = 0;
  uint16_t reserved = 0;
  uint32_t generation = 0;
  // kAnswer: the receiver's credit counter of this queue pair, and the number of entries that it holds.
  uint32_t returned = 0, held = 0;
  uint32_t reserved_too = 0;
  QueuePairRecord pair{};  // kOffer, kAnswer
  RailRecord rail{};       // kOffer, kAnswer: its address
  uint32_t padding = 0;
};
static_assert(sizeof(RecoveryRecord) == 88);

// The chunks that a receiver has, of the messages from `consumed` on. Earlier messages are closed.
struct ArrivedRecord {
  using Bitmap = std::array<uint64_t, kMaxChunks / 64>;

  uint32_t consumed = 0;
  uint32_t complete = 0;                      // bit i: message consumed + i is complete
  std::array<Bitmap, kMessageRing> chunks{};  // of message consumed + i, unless it is complete

  bool has(uint32_t ahead, uint32_t index) const {
    return (complete >> ahead & 1) != 0 || (chunks[ahead][index / 64] >> (index % 64) & 1) != 0;
  }
};
static_assert(kMessageRing == 32,
              "ArrivedRecord::complete and SendCore::unclaimed_ have a bit for each message");
static_assert(sizeof(ArrivedRecord) == 8 + kMessageRing * kMaxChunks / 8);

inline bool is_sane(const RecoveryRecord& record, uint32_t queue_pairs) {
  return record.magic == RecoveryRecord::kMagic && record.kind >= RecoveryKind::kDown &&
         record.kind <= RecoveryKind::kLive && record.queue_pair < queue_pairs;
}

}  // namespace verbena::protocol
