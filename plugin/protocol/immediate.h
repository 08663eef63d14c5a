// What the immediate of a chunk says: which part of which message it is, and how many bytes come with it.
#pragma once

#include <cstdint>
#include <optional>

#include "protocol/sequence.h"
#include "protocol/wire.h"

namespace verbena::protocol {

// One chunk of one message. Staged chunk i covers [i*page, i*page + length); a direct chunk was written to
// its place.
//
// Bits of an immediate, from the lowest:
//   8 number, 0, last, direct, 10 index, 11 announcement   the bytes come with the immediate
//   8 number, 1, last, 4 index, 18 units written           direct: a plain write before the immediate carried
//                                                          this many units of kWrittenUnitBytes, all of the
//                                                          chunk but its end
// The second is for networks that route adaptively: they spread plain writes over all paths, and keep what
// has an immediate to one. A completion tells the length of the write with the immediate alone, hence the
// units; what does not fill one, often nothing, goes with the immediate.
struct ChunkTag {
  uint8_t sequence;  // low bits of the message's number
  uint16_t index;    // below kMaxChunks
  bool last;         // index + 1 is the number of chunks
  bool direct;
  uint32_t written_bytes = 0;  // before the immediate

  // The number, which is nearer to `reference` than half the range of its bits.
  uint32_t expand(uint32_t reference) const { return expand_sequence(reference, sequence); }
};

inline constexpr uint32_t kWrittenUnitBytes = 4096;  // one packet on most networks
inline constexpr uint32_t kMaxWrittenUnits = (1U << 18) - 1;
inline constexpr uint32_t kMaxWrittenIndex = 15;

inline constexpr uint32_t kWrittenBit = 1U << 8, kLastBit = 1U << 9, kDirectBit = 1U << 10;
inline constexpr uint32_t kAnnouncementBits = 0xFFE00000U;

// The length of a chunk in 11 bits: whether it is anything at all, and ten bits that hardly ever are the same
// for two lengths. The receiver compares it with what the device says has come: a device or a peer that
// delivers less than it was given is found out, not taken for a short message.
inline constexpr uint32_t announce_length(uint32_t length_bytes) {
  constexpr uint32_t kAnything = 1U << 31, kGolden = 0x9E3779B9U;  // 2^32 over the golden ratio
  return (length_bytes * kGolden & kAnnouncementBits & ~kAnything) | ((0U - length_bytes) & kAnything);
}

// `length_bytes`: of what comes with the immediate, at most 2^30.
inline uint32_t encode_tag(ChunkTag tag, uint32_t length_bytes) {
  if (tag.written_bytes != 0) [[unlikely]] {
    return tag.sequence | kWrittenBit | (tag.last ? kLastBit : 0U) |
           (static_cast<uint32_t>(tag.index) << 10) | (tag.written_bytes / kWrittenUnitBytes << 14);
  }
  return tag.sequence | (tag.last ? kLastBit : 0U) | (tag.direct ? kDirectBit : 0U) |
         (static_cast<uint32_t>(tag.index) << 11) | announce_length(length_bytes);
}

// Whether it is the only chunk of its message, in its place where `is_direct`, and came with the bytes that
// it announced.
inline bool is_whole(uint32_t imm, uint32_t length_bytes, bool is_direct) {
  return (imm ^ announce_length(length_bytes)) >> 8 == (kLastBit | (is_direct ? kDirectBit : 0U)) >> 8;
}

// Whether it came with the bytes that it announced. Only the last units of the longest chunks are more than
// one.
inline bool is_as_announced(uint32_t imm, uint32_t length_bytes) {
  if ((imm & kWrittenBit) == 0) return (imm & kAnnouncementBits) == announce_length(length_bytes);
  return length_bytes < kWrittenUnitBytes ||
         (length_bytes == kWrittenUnitBytes && imm >> 14 == kMaxWrittenUnits);
}

// Empty if it is no immediate of ours.
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
