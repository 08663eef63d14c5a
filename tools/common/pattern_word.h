// The 8-byte words of every test pattern, for the host and, in kernels compiled with
// --expt-relaxed-constexpr, for the GPU. C++17.
#pragma once
#include <stdint.h>

namespace verbena::tools {

inline constexpr uint64_t kPatternGolden = 0x9E3779B97F4A7C15ULL;

// The start of a message's progression.
constexpr uint64_t compute_pattern_seed(uint64_t message_index) {
  uint64_t x = (message_index + 1) * kPatternGolden;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}

// Folds the high half into the low one: the low bytes of the progression alone would repeat every 256 words.
constexpr uint64_t compute_pattern_word(uint64_t seed, uint64_t word_index) {
  const uint64_t x = seed + word_index * kPatternGolden;
  return x ^ (x >> 32);
}

// The eight bytes of the message at any offset.
constexpr uint64_t compute_pattern_at(uint64_t seed, uint64_t offset_bytes) {
  const uint64_t low = compute_pattern_word(seed, offset_bytes / 8);
  const uint64_t bits = offset_bytes % 8 * 8;
  if (bits == 0) return low;
  return low >> bits | compute_pattern_word(seed, offset_bytes / 8 + 1) << (64 - bits);
}

}  // namespace verbena::tools
