// The clock of all deadlines and time stamps, and the pause in loops that wait.
#pragma once

#include <time.h>

#include <cstdint>

namespace verbena::softverbs {

inline uint64_t read_clock_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000ull + static_cast<uint64_t>(now.tv_nsec);
}

// For loops that wait: lets the other hardware thread of the core run faster.
inline void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace verbena::softverbs
