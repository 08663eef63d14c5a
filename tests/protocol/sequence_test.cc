#include "protocol/sequence.h"

#include <gtest/gtest.h>

namespace verbena::protocol {
namespace {

constexpr uint32_t kHalf = 0x80000000;
// Where 32, 16 and 8 bits wrap, and places that are nothing special.
constexpr uint32_t kReferences[] = {0,      1,       31,         0xFF,  0x7FFF,     0x8000,
                                    0xFFFF, 0x10000, 0x12345678, kHalf, 0xFFFF8000, 0xFFFFFFFF};
constexpr uint32_t kDistances[] = {1, 2, 63, 64, 0xFFFF, 0x10000, kHalf - 1};

TEST(Sequence, OrderSurvivesTheWrap) {
  for (const uint32_t earlier : kReferences) {
    EXPECT_FALSE(is_before(earlier, earlier));
    EXPECT_EQ(count_between(earlier, earlier), 0);
    for (const uint32_t distance : kDistances) {
      const uint32_t later = earlier + distance;
      EXPECT_EQ(count_between(earlier, later), static_cast<int32_t>(distance));
      EXPECT_EQ(count_between(later, earlier), -static_cast<int32_t>(distance));
      EXPECT_TRUE(is_before(earlier, later)) << earlier << " " << distance;
      EXPECT_FALSE(is_before(later, earlier)) << earlier << " " << distance;
    }
  }
}

TEST(Sequence, TheNewerSnapshotIsTakenWhicheverComesFirst) {
  for (const uint32_t earlier : kReferences) {
    EXPECT_EQ(take_newer(earlier, earlier), earlier);
    for (const uint32_t distance : kDistances) {
      EXPECT_EQ(take_newer(earlier, earlier + distance), earlier + distance);
      EXPECT_EQ(take_newer(earlier + distance, earlier), earlier + distance);
    }
  }
}

TEST(Sequence, LowBitsExpandToTheNearestNumber) {
  for (const uint32_t reference : kReferences) {
    for (int32_t distance = -0x80; distance < 0x80; ++distance) {
      const uint32_t full = reference + static_cast<uint32_t>(distance);
      ASSERT_EQ(expand_sequence(reference, static_cast<uint8_t>(full)), full) << reference << " " << distance;
    }
  }
}

}  // namespace
}  // namespace verbena::protocol
