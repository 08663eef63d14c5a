// How long a wait spins before it sleeps, and when it is over.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

#include "base/clock.h"
#include "base/interrupt.h"
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

enum class SpinEnd : uint8_t { kSeen, kOver, kInterrupted, kPreempted };

inline int64_t spin_end_after(int64_t now_ns, int64_t spin_us, int64_t deadline_ns) {
  return spin_us < 0 ? deadline_ns : std::min(deadline_ns, now_ns + spin_us * 1000);
}

// Until `look` is true, `end_ns` has come, the interpreter wants its thread back, or the kernel has had
// another thread run for longer than `most_away_ns`. now_ns: the time, a few microseconds old if something
// was seen.
template <typename Look>
SpinEnd spin(int64_t& now_ns, int64_t end_ns, const Look& look, int64_t most_away_ns = INT64_MAX) {
  constexpr int kLooksPerClock = 64;
  base::InterruptPoll interrupt;
  do {
    for (int i = 0; i < kLooksPerClock; ++i) {
      if (look()) return SpinEnd::kSeen;
      pause_processor();
    }
    const int64_t before_ns = std::exchange(now_ns, base::monotonic_ns());
    if (now_ns - before_ns > most_away_ns) return SpinEnd::kPreempted;
    if (interrupt.is_interrupted(now_ns)) return SpinEnd::kInterrupted;
  } while (now_ns < end_ns);
  return SpinEnd::kOver;
}

// After a signal's handler has run in a wait: whether the caller gets its turn.
inline bool must_return_after_signal() {
  return !base::has_interrupt_check() || base::is_interrupted();
}

}  // namespace verbena::message_queue
