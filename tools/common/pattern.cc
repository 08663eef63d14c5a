#include "common/pattern.h"

#include <algorithm>
#include <cstring>

#include "common/pattern_word.h"

namespace verbena::tools {
namespace {

constexpr size_t kWordBytes = sizeof(uint64_t);

PatternCheck count_wrong_bytes(std::span<const std::byte> message, uint64_t seed) {
  PatternCheck check;
  for (size_t offset = 0; offset < message.size(); ++offset) {
    const uint64_t word = compute_pattern_word(seed, offset / kWordBytes);
    const auto expected = static_cast<std::byte>(word >> (8 * (offset % kWordBytes)));
    if (message[offset] == expected) continue;
    if (check.wrong_bytes++ == 0) check.first_wrong_offset = offset;
  }
  return check;
}

}  // namespace

void fill_pattern(std::span<std::byte> message, uint64_t message_index) {
  const uint64_t seed = compute_pattern_seed(message_index);
  const size_t word_count = message.size() / kWordBytes;
  std::byte* out = message.data();
  for (size_t index = 0; index < word_count; ++index) {
    const uint64_t word = compute_pattern_word(seed, index);
    std::memcpy(out + index * kWordBytes, &word, kWordBytes);
  }
  const uint64_t last_word = compute_pattern_word(seed, word_count);
  for (size_t offset = word_count * kWordBytes; offset < message.size(); ++offset) {
    out[offset] = static_cast<std::byte>(last_word >> (8 * (offset % kWordBytes)));
  }
}

PatternCheck check_pattern(std::span<const std::byte> message, uint64_t message_index) {
  const uint64_t seed = compute_pattern_seed(message_index);
  const size_t word_count = message.size() / kWordBytes;
  const std::byte* in = message.data();
  uint64_t difference = 0;
  for (size_t index = 0; index < word_count; ++index) {
    uint64_t word;
    std::memcpy(&word, in + index * kWordBytes, kWordBytes);
    difference |= word ^ compute_pattern_word(seed, index);
  }
  const uint64_t last_word = compute_pattern_word(seed, word_count);
  for (size_t offset = word_count * kWordBytes; offset < message.size(); ++offset) {
    const auto expected = static_cast<std::byte>(last_word >> (8 * (offset % kWordBytes)));
    difference |= static_cast<uint64_t>(message[offset] ^ expected);
  }
  return difference == 0 ? PatternCheck{} : count_wrong_bytes(message, seed);
}

void fill_guard(std::span<std::byte> guard) {
  std::fill(guard.begin(), guard.end(), kGuardByte);
}

uint64_t count_wrong_guard_bytes(std::span<const std::byte> guard) {
  return static_cast<uint64_t>(
      std::count_if(guard.begin(), guard.end(), [](std::byte value) { return value != kGuardByte; }));
}

}  // namespace verbena::tools
