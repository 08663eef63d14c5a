// Numbers that a seed fixes on every machine, which the standard's distributions do not promise.
#pragma once

#include <cstdint>

namespace verbena::protocol {

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t next() {
    state_ += 0x9E3779B97F4A7C15;
    uint64_t x = state_;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
    return x ^ (x >> 31);
  }
  // Both ends included.
  uint32_t between(uint32_t lowest, uint32_t highest) {
    return lowest + static_cast<uint32_t>(next() % (uint64_t{highest} - lowest + 1));
  }
  bool happens(uint32_t percent) { return next() % 100 < percent; }

 private:
  uint64_t state_;
};

}  // namespace verbena::protocol
