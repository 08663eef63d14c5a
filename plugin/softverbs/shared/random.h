// Random numbers that others should not guess: keys, first indices, challenges. Faults have numbers of
// their own (faults/request_count.h), which a seed repeats.
#pragma once

#include <sys/random.h>

#include <cstdint>
#include <span>

namespace verbena::softverbs {

// Random bytes from the system. Never waits: false if the system has no randomness yet.
inline bool draw(std::span<uint8_t> bytes) {
  return getrandom(bytes.data(), bytes.size(), GRND_NONBLOCK) == static_cast<ssize_t>(bytes.size());
}

// Below `bound`; 0 when the system has no randomness yet.
inline uint32_t draw_below(uint32_t bound) {
  uint8_t bytes[sizeof(uint64_t)] = {};
  if (!draw(bytes)) return 0;
  uint64_t value = 0;
  for (const uint8_t byte : bytes) value = value << 8 | byte;
  return static_cast<uint32_t>(value % bound);
}

}  // namespace verbena::softverbs
