#pragma once
#include <cstdint>
#include <random>

namespace verbena::chaos {

// The same seed always gives the same throws, with every standard library: its distributions would not.
class Dice {
 public:
  explicit Dice(uint64_t seed) : engine_(seed) {}

  uint64_t next() { return engine_(); }
  // Both ends included.
  uint64_t between(uint64_t least, uint64_t most) { return least + engine_() % (most - least + 1); }
  bool one_in(uint64_t count) { return engine_() % count == 0; }
  template <typename T, size_t kCount>
  T pick(const T (&choices)[kCount]) {
    return choices[engine_() % kCount];
  }

 private:
  std::mt19937_64 engine_;
};

}  // namespace verbena::chaos
