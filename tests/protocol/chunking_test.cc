#include "protocol/chunking.h"

#include <gtest/gtest.h>

#include <vector>

#include "protocol/random.h"

namespace verbena::protocol {
namespace {

constexpr uint32_t kPages[] = {4096, 8192, 16384, 32768, 65536};
constexpr uint64_t kStripes[] = {4096, 5000, 65536, 1 << 20, 1 << 30};
constexpr uint64_t kLongestMessageBytes = uint64_t{1} << 34;  // longer than one work request or 32 bits

// The neighbourhood of everything round, and a few thousand lengths of all magnitudes.
std::vector<uint64_t> list_lengths() {
  std::vector<uint64_t> lengths = {0, 1, 2, 3, 5, 7};
  for (uint64_t power = 8; power <= kLongestMessageBytes; power *= 2) {
    lengths.insert(lengths.end(), {power - 1, power, power + 1, 3 * power / 2});
  }
  Random random(1);
  for (int i = 0; i < 600; ++i) {
    lengths.push_back(random.next() >> random.between(30, 60));
  }
  return lengths;
}

// Chunks follow one another without gap or overlap, from the first byte to the last.
void expect_cover(const ChunkPlan& plan, uint64_t length_bytes) {
  ASSERT_GE(plan.count, 1U);
  uint64_t next = 0;
  for (uint32_t i = 0; i < plan.count; ++i) {
    const Chunk chunk = plan.chunk(i);
    ASSERT_EQ(chunk.offset_bytes, next);
    ASSERT_TRUE(chunk.length_bytes != 0 || length_bytes == 0) << "chunk " << i << " of " << plan.count;
    next += chunk.length_bytes;
  }
  ASSERT_EQ(next, length_bytes);
}

TEST(Chunking, StagedMessagesAreCutIntoWholePages) {
  for (const uint64_t length : list_lengths()) {
    if (length > 2 * uint64_t{kMaxChunks} * kPages[0]) continue;  // far beyond what is ever staged
    for (const uint32_t page : kPages) {
      const ChunkPlan plan = plan_staged(length, page);
      ASSERT_NO_FATAL_FAILURE(expect_cover(plan, length)) << length << " in pages of " << page;
      for (uint32_t i = 0; i + 1 < plan.count; ++i) ASSERT_EQ(plan.chunk(i).length_bytes, page);
      ASSERT_LE(plan.chunk(plan.count - 1).length_bytes, page);
    }
  }
}

TEST(Chunking, DirectMessagesAreCutIntoAlignedStripes) {
  for (const uint64_t length : list_lengths()) {
    for (uint32_t pairs = 1; pairs <= kMaxQueuePairs; ++pairs) {
      for (const uint64_t min_stripe : kStripes) {
        const ChunkPlan plan = plan_direct(length, pairs, min_stripe);
        ASSERT_NO_FATAL_FAILURE(expect_cover(plan, length)) << length << " over " << pairs;
        const uint64_t needed = divide_up(length, kMaxStripeBytes);
        ASSERT_LE(plan.count, std::max<uint64_t>(pairs, needed));
        const bool is_worthwhile = plan.count == 1 || length >= plan.count * min_stripe;
        ASSERT_TRUE(is_worthwhile || plan.count == needed) << length << " over " << pairs;
        for (uint32_t i = 0; i < plan.count; ++i) {
          const Chunk chunk = plan.chunk(i);
          ASSERT_EQ(chunk.offset_bytes % kDirectAlignBytes, 0U);
          ASSERT_LE(chunk.length_bytes, kMaxStripeBytes);
          if (plan.count == 1 || !is_worthwhile) continue;
          // Only the last one pays for the others' rounding.
          const uint64_t slack = i + 1 == plan.count ? plan.count * kDirectAlignBytes : 0;
          ASSERT_GE(chunk.length_bytes + slack, min_stripe) << length << " over " << pairs;
        }
      }
    }
  }
}

TEST(Chunking, ALongMessageUsesEveryQueuePairEvenly) {
  for (uint32_t pairs = 1; pairs <= kMaxQueuePairs; ++pairs) {
    const ChunkPlan plan = plan_direct(64 << 20, pairs, 65536);
    EXPECT_EQ(plan.count, pairs);
    const uint64_t least = plan.chunk(pairs - 1).length_bytes, most = plan.chunk(0).length_bytes;
    EXPECT_LE(most - least, uint64_t{pairs} * kDirectAlignBytes);
  }
}

TEST(Chunking, TheLongestStagedMessageFitsTheTag) {
  EXPECT_EQ(plan_staged(4194304, 4096).count, kMaxChunks);
}

}  // namespace
}  // namespace verbena::protocol
