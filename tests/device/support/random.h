// The same numbers for the same seed, on every machine.
#pragma once

#include <cstdint>

namespace verbena::device_test {

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15 + 1) {}

  uint64_t next() {
    state_ = state_ * 6364136223846793005 + 1442695040888963407;
    return (state_ ^ (state_ >> 29)) * 0x94d049bb133111eb >> 16;
  }
  // Both ends included.
  uint32_t between(uint32_t lowest, uint32_t highest) {
    return lowest + static_cast<uint32_t>(next() % (uint64_t{highest} - lowest + 1));
  }

 private:
  uint64_t state_;
};

}  // namespace verbena::device_test
