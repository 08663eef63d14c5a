// How long a wait spins before it sleeps, and when it is over.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/clock.h"
#include "device/message_queue/ring_memory.h"

namespace verbena::message_queue {

inline constexpr int64_t kForever = -1;  // of a time-out, in milliseconds, and of spinning, in microseconds

inline int64_t deadline_after(int64_t timeout_ms) {
  if (timeout_ms < 0) return kNoDeadline;
  return base::monotonic_ns() +
         std::min<int64_t>(timeout_ms, INT64_MAX / 4 / base::kNsPerMs) * base::kNsPerMs;
}

inline void pause_processor() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// True as soon as `look` is; false once `spin_us` or the deadline is over.
template <typename Look>
bool spin(int64_t spin_us, int64_t deadline_ns, const Look& look) {
  constexpr int kLooksPerClock = 64;
  const int64_t end_ns =
      spin_us < 0 ? deadline_ns : std::min(deadline_ns, base::monotonic_ns() + spin_us * 1000);
  do {
    for (int i = 0; i < kLooksPerClock; ++i) {
      if (look()) return true;
      pause_processor();
    }
  } while (base::monotonic_ns() < end_ns);
  return false;
}

}  // namespace verbena::message_queue
