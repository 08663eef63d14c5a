// The records that two one-sided endpoints exchange when a queue pair of a lane has failed. A record is about
// one lane, one rail of the pair of endpoints, and one generation of the queue pair there. kWordRail and
// kGivenUp are about the whole endpoint. lane_recovery.h defines the order of the records. Little endian;
// every field from outside is checked.
#pragma once

#include <cstdint>

#include "protocol/handshake.h"

namespace verbena::protocol {

enum class LaneRecordKind : uint8_t {
  kDown = 1,      // both directions: this queue pair is in the error state; it has executed `packets` packets
  kOffer = 2,     // lower rank: a new queue pair for the next generation
  kAnswer = 3,    // higher rank: the peer queue pair, connected
  kRefusal = 4,   // higher rank: no queue pair can be created now
  kLive = 5,      // lower rank: the new queue pair works
  kWordRail = 6,  // the sender's words are now accessed on this rail; `generation` counts these records
  kGivenUp = 7,   // the sender has given up the receiver, and all outstanding requests
};

struct LaneRecord {
  static constexpr uint32_t kMagic = 0x564c4e52;

  uint32_t magic = kMagic;
  LaneRecordKind kind{};
  uint8_t lane = 0;
  uint8_t rail = 0;       // of the pair of endpoints; for kWordRail: of the sender's endpoint
  uint8_t has_count = 0;  // for kDown: the device reports what it has executed
  uint32_t generation = 0;
  uint32_t packets = 0;    // for kDown: executed since the queue pair began, modulo 2^24
  QueuePairRecord pair{};  // kOffer, kAnswer
  uint32_t reserved = 0;
  RailRecord address{};  // kOffer, kAnswer: its address
};
static_assert(sizeof(LaneRecord) == 80);

// Devices number the packets of a queue pair modulo 2^24. Such a number tells how many packets were executed
// only if fewer than half of all numbers are outstanding. LaneCore delays requests that would exceed this
// limit.
class PacketNumbers {
 public:
  static constexpr uint32_t kBits = 24;
  explicit constexpr PacketNumbers(uint32_t bits) : mask_((1U << bits) - 1) {}

  constexpr uint32_t add(uint32_t number, uint32_t packets) const { return (number + packets) & mask_; }
  constexpr uint32_t count(uint32_t from, uint32_t to) const { return (to - from) & mask_; }
  constexpr uint32_t max_under_way() const { return mask_ / 2; }

 private:
  const uint32_t mask_;
};

inline bool is_sane(const LaneRecord& record, uint32_t lanes, uint32_t rails) {
  return record.magic == LaneRecord::kMagic && record.kind >= LaneRecordKind::kDown &&
         record.kind <= LaneRecordKind::kGivenUp && record.rail < rails && record.lane < lanes &&
         record.has_count <= 1 && record.packets < 1U << PacketNumbers::kBits;
}

}  // namespace verbena::protocol
