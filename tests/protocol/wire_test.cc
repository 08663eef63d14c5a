#include "protocol/wire.h"

#include <gtest/gtest.h>

#include <cstddef>

namespace verbena::protocol {
namespace {

TEST(WireGrant, AStampTellsNumberAndTag) {
  for (const uint32_t sequence : {0U, 1U, 31U, 0x7FFFFFFFU}) {
    for (const int32_t tag : {0, 1, -1, INT32_MAX, INT32_MIN}) {
      Grant grant{};
      grant.stamp = Grant::make_stamp(sequence, tag);
      EXPECT_EQ(grant.tag(), tag);
      EXPECT_EQ(static_cast<uint32_t>(grant.stamp), Grant::low_stamp(sequence));
      EXPECT_NE(static_cast<uint32_t>(grant.stamp), 0U) << "as nobody has written";
      EXPECT_NE(Grant::low_stamp(sequence), Grant::low_stamp(sequence + kMessageRing))
          << "of the entry's next";
    }
  }
}

// A reader takes the whole line for there once it sees the stamp, so nothing may come behind it.
TEST(WireLayout, TheStampIsTheLastWordOfAGrant) {
  EXPECT_EQ(offsetof(Grant, stamp), sizeof(Grant) - sizeof(uint64_t));
  EXPECT_EQ(offsetof(ControlBlock, grants) % 64, 0U);
  EXPECT_EQ(offsetof(ControlBlock, credits) % 64, 0U);
  EXPECT_EQ(offsetof(ControlBlock, credits), sizeof(Grant) * kMessageRing);
}

TEST(WireLayout, AMessageStaysApartFromItsNeighboursInTheRing) {
  EXPECT_EQ((uint64_t{1} << 32) % kMessageRing, 0U) << "a wrap of the numbers must not skip slots";
  EXPECT_LT(kMessageRing, 0x80U) << "8 bits tell the messages of a ring apart";
}

}  // namespace
}  // namespace verbena::protocol
