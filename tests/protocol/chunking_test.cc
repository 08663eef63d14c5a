#include "protocol/chunking.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "protocol/random.h"

namespace verbena::protocol {
namespace {

constexpr uint32_t kPages[] = {4096, 8192, 16384, 32768, 65536};
constexpr uint64_t kLongestMessageBytes = uint64_t{1} << 34;  // longer than one work request or 32 bits

// The neighbourhood of everything round, and a few hundred lengths of all magnitudes.
std::vector<uint64_t> list_lengths() {
  std::vector<uint64_t> lengths = {0, 1, 2, 3, 5, 7};
  for (uint64_t power = 8; power <= kLongestMessageBytes; power *= 2) {
    lengths.insert(lengths.end(), {power - 1, power, power + 1, 3 * power / 2});
  }
  Random random(1);
  for (int i = 0; i < 300; ++i) lengths.push_back(random.next() >> random.between(30, 60));
  return lengths;
}

// Any shares of whole units, some of them nothing, that make at least the message.
Shares draw_shares(Random& random, uint64_t length_bytes, uint64_t unit_bytes) {
  uint64_t units = std::max<uint64_t>(1, divide_up(length_bytes, unit_bytes));
  Shares shares{};
  const uint32_t pairs = random.between(1, kMaxQueuePairs);
  for (uint32_t q = 0; q + 1 < pairs; ++q) {
    const uint64_t share = random.happens(30) ? 0 : random.next() % (units + 1);
    shares[q] = share * unit_bytes;
    units -= share;
  }
  shares[pairs - 1] = units * unit_bytes;
  return shares;
}

// Takes everything, from queue pairs in any order; chunks sorted by offset.
template <typename Take>
std::vector<Chunk> take_all(Cut& cut, Random& random, Take&& take) {
  std::vector<Chunk> chunks;
  while (!cut.is_empty()) {
    const uint32_t q = random.between(0, kMaxQueuePairs - 1);
    if (cut.left_bytes(q) != 0) chunks.push_back(take(q));
  }
  std::sort(chunks.begin(), chunks.end(),
            [](const Chunk& a, const Chunk& b) { return a.offset_bytes < b.offset_bytes; });
  return chunks;
}

// Chunks follow one another without gap or overlap, from the first byte to the last.
void expect_cover(const std::vector<Chunk>& chunks, uint64_t length_bytes) {
  ASSERT_GE(chunks.size(), 1U);
  uint64_t next = 0;
  for (const Chunk& chunk : chunks) {
    ASSERT_EQ(chunk.offset_bytes, next);
    ASSERT_TRUE(chunk.length_bytes != 0 || length_bytes == 0);
    next += chunk.length_bytes;
  }
  ASSERT_EQ(next, length_bytes);
}

TEST(Chunking, StagedMessagesAreCutIntoWholePages) {
  Random random(2);
  for (const uint64_t length : list_lengths()) {
    if (length > 2 * uint64_t{kMaxChunks} * kPages[0]) continue;  // far beyond what is ever staged
    for (const uint32_t page : kPages) {
      Cut cut;
      cut.start(length, page, draw_shares(random, length, page));
      const auto chunks = take_all(cut, random, [&](uint32_t q) { return cut.take(q); });
      ASSERT_NO_FATAL_FAILURE(expect_cover(chunks, length)) << length << " in pages of " << page;
      ASSERT_EQ(chunks.size(), count_pages(length, page));
      for (const Chunk& chunk : chunks) ASSERT_EQ(chunk.offset_bytes % page, 0U);
    }
  }
}

TEST(Chunking, DirectMessagesAreCutIntoAlignedStripes) {
  Random random(3);
  for (const uint64_t length : list_lengths()) {
    for (int round = 0; round < 20; ++round) {
      Cut cut;
      const Shares shares = draw_shares(random, length, kDirectAlignBytes);
      uint64_t most = 0;
      for (const uint64_t share : shares) most += divide_up(share, kMaxStripeBytes);
      cut.start(length, 0, shares);
      const auto chunks = take_all(cut, random, [&](uint32_t q) { return cut.take(q); });
      ASSERT_NO_FATAL_FAILURE(expect_cover(chunks, length)) << length;
      ASSERT_LE(chunks.size(), most) << "more stripes than there must be";
      for (const Chunk& chunk : chunks) {
        ASSERT_EQ(chunk.offset_bytes % kDirectAlignBytes, 0U);
        ASSERT_LE(chunk.length_bytes, kMaxStripeBytes);
      }
    }
  }
}

// A device may take shorter messages than others do.
TEST(Chunking, NoStripeIsLongerThanADeviceTakes) {
  Random random(5);
  for (const uint32_t longest : {uint32_t{128}, uint32_t{8} << 20}) {
    for (const uint64_t length :
         {uint64_t{1}, uint64_t{longest}, uint64_t{longest} + 1, uint64_t{longest} * 77 + 5}) {
      Cut cut;
      cut.start(length, 0, draw_shares(random, length, kDirectAlignBytes), longest);
      const auto chunks = take_all(cut, random, [&](uint32_t q) { return cut.take(q); });
      ASSERT_NO_FATAL_FAILURE(expect_cover(chunks, length)) << length;
      for (const Chunk& chunk : chunks) ASSERT_LE(chunk.length_bytes, longest);
      cut.start_one(length, 0, 1, longest);
      EXPECT_EQ(cut.count(), divide_up(length, longest));
    }
  }
}

TEST(Chunking, AMessageForOneQueuePairNeedsNoShares) {
  Cut cut;
  Shares shares{};
  shares[0] = shares[3] = 1 << 20;
  cut.start(2 << 20, 0, shares);
  cut.take(0);
  cut.take(3);
  for (const uint64_t length : {uint64_t{0}, uint64_t{8}, uint64_t{3} << 30}) {
    cut.start_one(length, 0, 2);
    for (const uint32_t q : {0, 1, 3, 4, 5, 6, 7}) EXPECT_EQ(cut.left_bytes(q), 0U);
    std::vector<Chunk> chunks;
    while (!cut.is_empty()) chunks.push_back(cut.take(2));
    expect_cover(chunks, length);
  }
}

TEST(Chunking, TheLongestStagedMessageFitsTheTag) {
  EXPECT_EQ(count_pages(4194304, 4096), kMaxChunks);
}

}  // namespace
}  // namespace verbena::protocol
