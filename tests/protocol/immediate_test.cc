#include "protocol/immediate.h"

#include <gtest/gtest.h>

namespace verbena::protocol {
namespace {

constexpr uint8_t kSequences[] = {0, 1, 0x7F, 0x80, 0xFF, 0x5A};
constexpr uint32_t kLengths[] = {0, 1, 8, 4095, 4096, 65536, 1U << 30};

TEST(Immediate, EveryTagComesBack) {
  for (const uint8_t sequence : kSequences) {
    for (uint16_t index = 0; index < kMaxChunks; ++index) {
      for (int flags = 0; flags < 4; ++flags) {
        const ChunkTag tag{sequence, index, (flags & 1) != 0, (flags & 2) != 0};
        for (const uint32_t length : kLengths) {
          const uint32_t imm = encode_tag(tag, length);
          const auto decoded = decode_tag(imm);
          ASSERT_TRUE(decoded);
          ASSERT_EQ(decoded->sequence, sequence);
          ASSERT_EQ(decoded->index, index);
          ASSERT_EQ(decoded->last, tag.last);
          ASSERT_EQ(decoded->direct, tag.direct);
          ASSERT_EQ(decoded->written_bytes, 0U);
          ASSERT_TRUE(is_as_announced(imm, length));
          ASSERT_EQ(is_whole(imm, length, true), index == 0 && flags == 3);
          ASSERT_EQ(is_whole(imm, length, false), index == 0 && flags == 1);
        }
      }
    }
  }
}

// Those whose bytes were written before: something was, and the rest of the bits is the chunk's.
TEST(Immediate, WhatWasWrittenBeforeComesBack) {
  for (uint32_t low = 0; low < 1U << 14; ++low) {
    if ((low & kWrittenBit) == 0) continue;
    for (uint32_t units = 0; units <= kMaxWrittenUnits; units = units * 3 + (units % 2 == 0 ? 1 : 0)) {
      const uint32_t imm = low | units << 14;
      const auto decoded = decode_tag(imm);
      ASSERT_EQ(decoded.has_value(), units != 0) << std::hex << imm;
      if (!decoded) continue;
      ASSERT_EQ(decoded->written_bytes, units * kWrittenUnitBytes);
      ASSERT_EQ(decoded->last, (imm & kLastBit) != 0);
      ASSERT_TRUE(decoded->direct);
      ASSERT_EQ(encode_tag(*decoded, 0), imm);
      ASSERT_FALSE(is_whole(imm, 0, true));
      ASSERT_FALSE(is_whole(imm, 0, false));
    }
  }
  EXPECT_EQ(encode_tag({0xA5, kMaxWrittenIndex, true, true, kMaxWrittenUnits * kWrittenUnitBytes}, 0),
            0xFFFFFFA5U);
}

TEST(Immediate, BehindWhatWasWrittenComesLessThanAUnit) {
  constexpr uint32_t kUnit = kWrittenUnitBytes;
  const uint32_t one = encode_tag({0, 0, true, true, kUnit}, 0);
  EXPECT_TRUE(is_as_announced(one, 0));
  EXPECT_TRUE(is_as_announced(one, kUnit - 1));
  EXPECT_FALSE(is_as_announced(one, kUnit));
  const uint32_t most = encode_tag({0, 0, true, true, kMaxWrittenUnits * kUnit}, 0);
  EXPECT_TRUE(is_as_announced(most, kUnit)) << "a chunk of 1 GiB";
  EXPECT_FALSE(is_as_announced(most, kUnit + 1));
}

TEST(Immediate, NoBytesAreNeverTakenForSome) {
  for (uint32_t length = 1; length < 1U << 22; ++length) {
    ASSERT_FALSE(is_as_announced(encode_tag({0, 0, true, true}, length), 0)) << length;
    ASSERT_FALSE(is_as_announced(encode_tag({0, 0, true, true}, 0), length)) << length;
  }
  for (uint32_t length = 1U << 30; length != 0; length /= 2) {
    ASSERT_FALSE(is_whole(encode_tag({0, 0, true, true}, length), 0, true)) << length;
    ASSERT_FALSE(is_whole(encode_tag({0, 0, true, false}, length), 0, false)) << length;
  }
}

// What a part of a message looks like: so many bytes less, half of it, a page of it.
TEST(Immediate, AnotherLengthIsHardlyEverTakenForTheRightOne) {
  uint32_t compared = 0, mistaken = 0;
  for (uint32_t length = 1; length <= 1U << 30; length += length / 100 + 1) {
    const uint32_t imm = encode_tag({0, 0, true, true}, length);
    for (const uint32_t other :
         {length - 1, length + 1, length / 2, length * 2, length - length % 4096, 4096U, 1U}) {
      if (other == length) continue;
      ++compared;
      mistaken += is_as_announced(imm, other);
    }
  }
  EXPECT_GT(compared, 10'000U);
  EXPECT_LT(mistaken, compared / 500);
}

TEST(Immediate, ANumberIsFoundByItsLowBits) {
  for (const uint32_t number : {0U, 100U, 0x7FFFU, 0xFFFFFFF0U}) {
    for (int32_t off = -100; off <= 100; ++off) {
      const uint32_t reference = number + static_cast<uint32_t>(off);
      EXPECT_EQ((ChunkTag{static_cast<uint8_t>(number), 0, true, true}.expand(reference)), number);
    }
  }
}

}  // namespace
}  // namespace verbena::protocol
