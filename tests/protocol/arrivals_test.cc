#include "protocol/arrivals.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

namespace verbena::protocol {
namespace {

constexpr uint32_t kLengthBytes = 100;

ChunkTag make_tag(uint32_t index, uint32_t count, bool direct = false) {
  return {0, static_cast<uint16_t>(index), index + 1 == count, direct};
}

TEST(Arrivals, AMessageIsCompleteWithItsLastChunkInEveryOrder) {
  for (uint32_t count = 1; count <= 7; ++count) {
    std::vector<uint32_t> order(count);
    std::iota(order.begin(), order.end(), 0);
    do {
      Arrivals arrivals;
      ASSERT_TRUE(arrivals.is_empty());
      for (uint32_t i = 0; i < count; ++i) {
        ASSERT_FALSE(arrivals.is_complete());
        ASSERT_EQ(arrivals.record(make_tag(order[i], count), kLengthBytes), Arrival::kNew);
        ASSERT_FALSE(arrivals.is_empty());
      }
      ASSERT_TRUE(arrivals.is_complete());
      ASSERT_EQ(arrivals.bytes(), uint64_t{count} * kLengthBytes);
    } while (std::next_permutation(order.begin(), order.end()));
  }
}

// The same chunk again, right away and at the end, changes nothing.
TEST(Arrivals, DuplicatesDoNotCount) {
  for (uint32_t count = 1; count <= 6; ++count) {
    std::vector<uint32_t> order(count);
    std::iota(order.begin(), order.end(), 0);
    do {
      Arrivals arrivals;
      for (const uint32_t index : order) {
        ASSERT_FALSE(arrivals.is_complete());
        ASSERT_EQ(arrivals.record(make_tag(index, count), kLengthBytes), Arrival::kNew);
        ASSERT_EQ(arrivals.record(make_tag(index, count), kLengthBytes), Arrival::kDuplicate);
      }
      for (const uint32_t index : order) {
        ASSERT_EQ(arrivals.record(make_tag(index, count), kLengthBytes), Arrival::kDuplicate);
      }
      ASSERT_TRUE(arrivals.is_complete());
      ASSERT_EQ(arrivals.bytes(), uint64_t{count} * kLengthBytes);
    } while (std::next_permutation(order.begin(), order.end()));
  }
}

TEST(Arrivals, AMessageHasOneEnd) {
  for (uint32_t count = 2; count <= 5; ++count) {
    for (uint32_t other = 1; other <= 6; ++other) {
      if (other == count) continue;
      Arrivals arrivals;
      ASSERT_EQ(arrivals.record(make_tag(count - 1, count), 1), Arrival::kNew);
      EXPECT_EQ(arrivals.record(make_tag(other - 1, other), 1), Arrival::kInvalid) << count << " " << other;
    }
  }
}

TEST(Arrivals, NothingLiesBehindTheEnd) {
  for (uint32_t index = 3; index < 8; ++index) {
    Arrivals end_first, end_last;
    ASSERT_EQ(end_first.record(make_tag(2, 3), 1), Arrival::kNew);
    EXPECT_EQ(end_first.record(make_tag(index, kMaxChunks), 1), Arrival::kInvalid) << index;
    ASSERT_EQ(end_last.record(make_tag(index, kMaxChunks), 1), Arrival::kNew);
    EXPECT_EQ(end_last.record(make_tag(2, 3), 1), Arrival::kInvalid) << index;
  }
}

TEST(Arrivals, TheLastChunkIsAlwaysTheLast) {
  Arrivals arrivals;
  ASSERT_EQ(arrivals.record(make_tag(2, 3), 1), Arrival::kNew);
  EXPECT_EQ(arrivals.record(make_tag(2, kMaxChunks), 1), Arrival::kInvalid);
  // The highest index that there is ends its message.
  Arrivals endless;
  EXPECT_EQ(endless.record({0, kMaxChunks - 1, false, false}, 1), Arrival::kInvalid);
}

TEST(Arrivals, StagedAndDirectDoNotMix) {
  for (const bool direct : {false, true}) {
    Arrivals arrivals;
    ASSERT_EQ(arrivals.record(make_tag(0, 3, direct), 1), Arrival::kNew);
    EXPECT_EQ(arrivals.is_direct(), direct);
    EXPECT_EQ(arrivals.record(make_tag(1, 3, !direct), 1), Arrival::kInvalid);
    EXPECT_EQ(arrivals.record(make_tag(1, 3, direct), 1), Arrival::kNew);
  }
}

TEST(Arrivals, AWholeMessageLeavesWhatItsOnlyChunkWould) {
  for (const bool direct : {false, true}) {
    Arrivals arrivals;
    arrivals.record_whole(kLengthBytes, direct);
    EXPECT_TRUE(arrivals.is_complete());
    EXPECT_EQ(arrivals.bytes(), kLengthBytes);
    EXPECT_EQ(arrivals.is_direct(), direct);
    EXPECT_EQ(arrivals.record(make_tag(0, 1, direct), kLengthBytes), Arrival::kDuplicate);
    EXPECT_EQ(arrivals.record(make_tag(0, 1, !direct), kLengthBytes), Arrival::kInvalid);
    EXPECT_EQ(arrivals.record(make_tag(1, 2, direct), kLengthBytes), Arrival::kInvalid) << "behind the end";
    EXPECT_EQ(arrivals.bytes(), kLengthBytes);
  }
}

TEST(Arrivals, TheLongestMessageArrivesBackwards) {
  Arrivals arrivals;
  for (uint32_t index = kMaxChunks; index-- > 0;) {
    ASSERT_FALSE(arrivals.is_complete());
    ASSERT_EQ(arrivals.record(make_tag(index, kMaxChunks), 65536), Arrival::kNew);
  }
  EXPECT_TRUE(arrivals.is_complete());
  EXPECT_EQ(arrivals.bytes(), uint64_t{kMaxChunks} * 65536);
  arrivals.reset();
  EXPECT_TRUE(arrivals.is_empty());
  EXPECT_EQ(arrivals.record(make_tag(0, 1), 7), Arrival::kNew) << "nothing of the message before is left";
  EXPECT_TRUE(arrivals.is_complete());
  EXPECT_EQ(arrivals.bytes(), 7U);
}

}  // namespace
}  // namespace verbena::protocol
