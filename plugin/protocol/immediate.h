// The immediate of a chunk: it identifies the message and the part of the message, and the number of bytes.
#pragma once

#include <cstdint>
#include <optional>

#include "protocol/sequence.h"
#include "protocol/wire.h"

namespace verbena::protocol {

// One chunk of a message. The staged chunk i contains the bytes [i*page, i*page + length). A direct chunk was
// written to its destination.
//
// Bits of an immediate, from the lowest:
//   8 number, 0, last, direct, 10 index, 11 announcement   the bytes come with the immediate
//   8 number, 1, last, 4 index, 18 units written           direct: a plain write before the immediate carried
//                                                          this many units of kWrittenUnitBytes: all of the
//                                                          chunk except its end
// The second form is for networks with adaptive routing. They spread plain writes over all paths, but keep a
// write with an immediate on one path. A completion reports only the length of the write with the immediate,
// so the immediate contains the number of units. The bytes after the last whole unit, often none, are sent
// with the immediate.
struct ChunkTag {
  uint8_t sequence;  // low bits of the message number
  uint16_t index;    // below kMaxChunks
  bool last;         // index + 1 is the number of chunks
  bool direct;
  uint32_t written_bytes = 0;  // bytes of the plain write before the immediate

  // Returns the message number: the number nearest to `reference` that has these bits.
  uint32_t expand(uint32_t reference) const { return expand_sequence(reference, sequence); }
};

inline constexpr uint32_t kWrittenUnitBytes = 4096;  // one packet on most networks
inline constexpr uint32_t kMaxWrittenUnits = (1U << 18) - 1;
inline constexpr uint32_t kMaxWrittenIndex = 15;

inline constexpr uint32_t kWrittenBit = 1U << 8, kLastBit = 1U << 9, kDirectBit = 1U << 10;
inline constexpr uint32_t kAnnouncementBits = 0xFFE00000U;

// A hash of the length of a chunk in 11 bits: one bit that tells whether the chunk is empty, and ten bits
// that rarely agree for two lengths. The receiver compares it with the length that the device reports, to
// detect a device or a peer that delivers fewer bytes than were sent.
inline constexpr uint32_t announce_length(uint32_t length_bytes) {
  constexpr uint32_t kAnything = 1U << 31, kGolden = 0x9E3779B9U;  // 2^32 divided by the golden ratio
  return (length_bytes * kGolden & kAnnouncementBits & ~kAnything) | ((0U - length_bytes) & kAnything);
}

// `length_bytes` is the number of bytes that come with the immediate, at most 2^30.
inline uint32_t encode_tag(ChunkTag tag, uint32_t length_bytes) {
  if (tag.written_bytes != 0) [[unlikely]] {
    return tag.sequence | kWrittenBit | (tag.last ? kLastBit : 0U) |
           (static_cast<uint32_t>(tag.index) << 10) | (tag.written_bytes / kWrittenUnitBytes << 14);
  }
  return tag.sequence | (tag.last ? kLastBit : 0U) | (tag.direct ? kDirectBit : 0U) |
         (static_cast<uint32_t>(tag.index) << 11) | announce_length(length_bytes);
}

// Returns whether the chunk is the only one of its message, is direct if `is_direct`, and has the announced
// length.
inline bool is_whole(uint32_t imm, uint32_t length_bytes, bool is_direct) {
  return (imm ^ announce_length(length_bytes)) >> 8 == (kLastBit | (is_direct ? kDirectBit : 0U)) >> 8;
}

// Returns whether the chunk has the announced length. With units before the immediate, fewer bytes than one
// unit may follow; only after the maximum number of units a whole unit may follow.
inline bool is_as_announced(uint32_t imm, uint32_t length_bytes) {
  if ((imm & kWrittenBit) == 0) return (imm & kAnnouncementBits) == announce_length(length_bytes);
  return length_bytes < kWrittenUnitBytes ||
         (length_bytes == kWrittenUnitBytes && imm >> 14 == kMaxWrittenUnits);
}

// Returns an empty value if the immediate is not valid.
inline std::optional<ChunkTag> decode_tag(uint32_t imm) {
  const auto sequence = static_cast<uint8_t>(imm);
  const bool last = (imm & kLastBit) != 0;
  if ((imm & kWrittenBit) != 0) {
    const uint32_t units = imm >> 14;
    const auto index = static_cast<uint16_t>(imm >> 10 & kMaxWrittenIndex);
    return units == 0 ? std::nullopt
                      : std::optional(ChunkTag{sequence, index, last, true, units * kWrittenUnitBytes});
  }
  return ChunkTag{sequence, static_cast<uint16_t>(imm >> 11 & (kMaxChunks - 1)), last,
                  (imm & kDirectBit) != 0};
}

}  // namespace verbena::protocol
