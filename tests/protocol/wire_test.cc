#include "protocol/wire.h"

#include <gtest/gtest.h>

#include <cstddef>

namespace verbena::protocol {
namespace {

constexpr uint16_t kSequences[] = {0, 1, 0x7FFF, 0x8000, 0xFFFF, 0x5A5A};

TEST(WireTag, EveryTagComesBack) {
  for (const uint16_t sequence : kSequences) {
    for (uint16_t index = 0; index < kMaxChunks; ++index) {
      for (int flags = 0; flags < 4; ++flags) {
        const ChunkTag tag{sequence, index, (flags & 1) != 0, (flags & 2) != 0};
        const auto decoded = decode_tag(encode_tag(tag));
        ASSERT_TRUE(decoded);
        ASSERT_EQ(decoded->sequence, sequence);
        ASSERT_EQ(decoded->index, index);
        ASSERT_EQ(decoded->last, tag.last);
        ASSERT_EQ(decoded->direct, tag.direct);
      }
    }
  }
}

// Every upper half of an immediate: what is not a tag of this version is refused, and a tag has one encoding.
TEST(WireTag, EveryOtherPatternIsRefused) {
  uint32_t accepted = 0;
  for (const uint16_t sequence : kSequences) {
    for (uint32_t upper = 0; upper <= 0xFFFF; ++upper) {
      const uint32_t imm = upper << 16 | sequence;
      const bool is_known = upper >> 14 == 0 && (upper & 0xFFF) < kMaxChunks;
      const auto decoded = decode_tag(imm);
      ASSERT_EQ(decoded.has_value(), is_known) << std::hex << imm;
      if (!decoded) continue;
      ++accepted;
      ASSERT_EQ(encode_tag(*decoded), imm);
    }
  }
  EXPECT_EQ(accepted, std::size(kSequences) * 4 * kMaxChunks);
}

// A reader takes the whole line for there once it sees the stamp, so nothing may come behind it.
TEST(WireLayout, TheStampIsTheLastWordOfAGrant) {
  EXPECT_EQ(offsetof(Grant, sequence_plus_one), sizeof(Grant) - sizeof(uint64_t));
  EXPECT_EQ(offsetof(ControlBlock, grants) % 64, 0U);
  EXPECT_EQ(offsetof(ControlBlock, credits) % 64, 0U);
  EXPECT_EQ(offsetof(ControlBlock, credits), sizeof(Grant) * kMessageRing);
}

TEST(WireLayout, AMessageStaysApartFromItsNeighboursInTheRing) {
  EXPECT_EQ((uint64_t{1} << 32) % kMessageRing, 0U) << "a wrap of the numbers must not skip slots";
  EXPECT_LT(kMessageRing, 0x8000U) << "16 bits tell the messages of a ring apart";
}

}  // namespace
}  // namespace verbena::protocol
