// What two one-sided endpoints tell each other when a queue pair of a lane has failed. A record speaks of one
// lane, one rail of the pair of endpoints and one generation of the queue pair there; kWordRail and kGivenUp
// speak of the whole endpoint. lane_recovery.h says who sends what when. Little endian; every field from
// outside is checked.
#pragma once

#include <cstdint>

#include "protocol/handshake.h"

namespace verbena::protocol {

enum class LaneRecordKind : uint8_t {
  kDown = 1,      // both ways: mine is in the error state, and carried out so much of what you asked for
  kOffer = 2,     // the lower rank: a new queue pair for the next generation
  kAnswer = 3,    // the higher rank: its partner, connected
  kRefusal = 4,   // the higher rank: it cannot be had now
  kLive = 5,      // the lower rank: it has carried something
  kWordRail = 6,  // words of mine are reached on this rail from now on; `generation` counts these records
  kGivenUp = 7,   // I have given you up, and all that was under way
};

struct LaneRecord {
  static constexpr uint32_t kMagic = 0x564c4e52;

  uint32_t magic = kMagic;
  LaneRecordKind kind{};
  uint8_t lane = 0;
  uint8_t rail = 0;       // of the pair of endpoints; of kWordRail: of the sender's endpoint
  uint8_t has_count = 0;  // of kDown: the device says what it has carried out
  uint32_t generation = 0;
  uint32_t packets = 0;    // of kDown: carried out since the queue pair began, modulo 2^24
  QueuePairRecord pair{};  // kOffer, kAnswer
  uint32_t reserved = 0;
  RailRecord address{};  // kOffer, kAnswer: where it is reached
};
static_assert(sizeof(LaneRecord) == 80);

// Devices number the packets of a queue pair modulo 2^24. Such a number says how many packets were carried
// out only while fewer than half of the numbers are under way: LaneCore holds requests back that would exceed
// that.
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
