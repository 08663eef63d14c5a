// Small programs of two or more threads, right and wrong about memory order. ThreadSanitizer must be silent
// about the right ones and report the wrong ones.
#pragma once

#include <cstdint>
#include <span>

namespace verbena::emulator {

struct OrderingCase {
  const char* name;
  bool is_race;
  void (*run)(uint64_t seed);
};

std::span<const OrderingCase> ordering_cases();

}  // namespace verbena::emulator
