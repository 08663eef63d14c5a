// Random numbers that other processes should not be able to guess: keys, first indices, challenges. Faults
// use different random numbers (faults/request_count.h), which a seed reproduces.
#pragma once

#include <sys/random.h>

#include <cstdint>
#include <span>

namespace verbena::softverbs {

// Gets random bytes from the system. Never waits: returns false if the system has no randomness yet.
inline bool draw(std::span<uint8_t> bytes) {
  return getrandom(bytes.data(), bytes.size(), GRND_NONBLOCK) == static_cast<ssize_t>(bytes.size());
}

// Returns a number below `bound`; 0 if the system has no randomness yet.
inline uint32_t draw_below(uint32_t bound) {
  uint8_t bytes[sizeof(uint64_t)] = {};
  if (!draw(bytes)) return 0;
  uint64_t value = 0;
  for (const uint8_t byte : bytes) value = value << 8 | byte;
  return static_cast<uint32_t>(value % bound);
}

}  // namespace verbena::softverbs
