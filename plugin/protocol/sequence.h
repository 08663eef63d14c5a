// Comparison of counters that wrap. All other files use these functions. The distance of two values in use is
// always less than half the range.
#pragma once

#include <cstdint>

namespace verbena::protocol {

// Returns how far `later` is ahead of `earlier`; negative if it is behind.
inline int32_t count_between(uint32_t earlier, uint32_t later) {
  return static_cast<int32_t>(later - earlier);
}

inline bool is_before(uint32_t a, uint32_t b) {
  return count_between(a, b) > 0;
}

// Returns the newer one of two snapshots of a counter.
inline uint32_t take_newer(uint32_t a, uint32_t b) {
  return is_before(a, b) ? b : a;
}

// Returns the full sequence number that is nearest to `reference` and whose low 8 bits are `low`.
inline uint32_t expand_sequence(uint32_t reference, uint8_t low) {
  return reference + static_cast<uint32_t>(static_cast<int8_t>(low - static_cast<uint8_t>(reference)));
}

}  // namespace verbena::protocol
