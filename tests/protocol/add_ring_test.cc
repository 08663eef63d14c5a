#include "protocol/add_ring.h"

#include <gtest/gtest.h>

#include <cstring>

namespace verbena::protocol {
namespace {

constexpr uint64_t kValues[] = {0, 1, 0x0123456789abcdef, ~uint64_t{0}};

TEST(AddRing, NothingIsInMemoryThatNobodyHasWritten) {
  const AddRing ring{};
  for (uint32_t number = 0; number <= UINT16_MAX; ++number) {
    AddEntry entry;
    uint64_t value = 0;
    ASSERT_FALSE(take_entry(ring.requests[0], static_cast<uint16_t>(number), &entry)) << number;
    ASSERT_FALSE(take_answer(ring.answers[0], static_cast<uint16_t>(number), &value)) << number;
  }
}

TEST(AddRing, AnEntryIsTakenByItsNumberAlone) {
  for (const uint64_t operand : kValues) {
    const AddEntry written = make_entry(65, 7, 4096, operand);
    AddEntry entry;
    ASSERT_TRUE(take_entry(written, 65, &entry));
    EXPECT_EQ(entry.operand, operand);
    EXPECT_EQ(entry.offset, 4096U);
    EXPECT_EQ(entry.region(), 7U);
    EXPECT_FALSE(take_entry(written, 1, &entry)) << "the number that had the slot before";
    uint64_t value = 0;
    ASSERT_TRUE(take_answer(make_answer(65, operand), 65, &value));
    EXPECT_EQ(value, operand);
    EXPECT_FALSE(take_answer(make_answer(65, operand), 1, &value));
  }
}

// The slot held entry 1 and receives entry 65 in pieces of four bytes, in any order.
TEST(AddRing, AnEntryIsNotTakenBeforeAllOfItIsThere) {
  const AddEntry before = make_entry(1, 7, 64, 5), after = make_entry(65, 9, 1 << 20, 1'000'000'007);
  constexpr uint32_t kPieces = sizeof(AddEntry) / 4;
  for (uint32_t there = 0; there < 1U << kPieces; ++there) {
    AddEntry slot = before, entry;
    for (uint32_t piece = 0; piece < kPieces; ++piece) {
      if ((there >> piece & 1) == 0) continue;
      std::memcpy(reinterpret_cast<std::byte*>(&slot) + piece * 4,
                  reinterpret_cast<const std::byte*>(&after) + piece * 4, 4);
    }
    const bool is_whole = std::memcmp(&slot, &after, sizeof(slot)) == 0;
    ASSERT_EQ(take_entry(slot, 65, &entry), is_whole) << there;
  }
}

}  // namespace
}  // namespace verbena::protocol
