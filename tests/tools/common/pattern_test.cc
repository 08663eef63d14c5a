#include "common/pattern.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace verbena::tools {
namespace {

TEST(Pattern, ChecksWhatItFilled) {
  for (const size_t length : {0U, 1U, 7U, 8U, 9U, 4095U, 4096U, 100003U}) {
    std::vector<std::byte> message(length);
    fill_pattern(message, 42);
    EXPECT_EQ(check_pattern(message, 42).wrong_bytes, 0U) << length;
  }
}

TEST(Pattern, FindsEveryFlippedBit) {
  std::vector<std::byte> message(77);
  fill_pattern(message, 5);
  for (size_t offset = 0; offset < message.size(); ++offset) {
    message[offset] ^= std::byte{1};
    const PatternCheck check = check_pattern(message, 5);
    EXPECT_EQ(check.wrong_bytes, 1U);
    EXPECT_EQ(check.first_wrong_offset, offset);
    message[offset] ^= std::byte{1};
  }
}

TEST(Pattern, AnotherMessageIsAlmostAllWrong) {
  std::vector<std::byte> message(65536);
  fill_pattern(message, 7);
  EXPECT_GT(check_pattern(message, 8).wrong_bytes, message.size() * 9 / 10);
}

TEST(Pattern, MisplacedPagesShow) {
  std::vector<std::byte> message(16 * 4096);
  fill_pattern(message, 1);
  std::rotate(message.begin(), message.begin() + 4096, message.end());
  EXPECT_GT(check_pattern(message, 1).wrong_bytes, message.size() * 9 / 10);
}

TEST(Pattern, GuardCountsOverwrittenBytes) {
  std::vector<std::byte> guard(kGuardLengthBytes);
  fill_guard(guard);
  EXPECT_EQ(count_wrong_guard_bytes(guard), 0U);
  guard[3] = std::byte{0};
  guard[63] = std::byte{1};
  EXPECT_EQ(count_wrong_guard_bytes(guard), 2U);
}

}  // namespace
}  // namespace verbena::tools
