// The timeouts of the queue's waits, and how long waits spin.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/clock.h"
#include "base/interrupt.h"
#include "device/message_queue/ring_memory.h"

namespace verbena::message_queue {

// Stands for a timeout, or for a spinning time, without a limit.
inline constexpr int64_t kForever = -1;
// Stands for a spinning time that SpinPlan chooses.
inline constexpr int64_t kAdaptive = -2;

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

enum class SpinEnd : uint8_t { kSeen, kOver, kInterrupted };

// Polls until look() is true, the time is `end_ns`, or the Python interpreter needs its thread.
template <typename Look>
SpinEnd spin(int64_t end_ns, const Look& look) {
  constexpr int kLooksPerClock = 64;
  int64_t now_ns = 0;
  base::InterruptPoll interrupt;
  do {
    for (int i = 0; i < kLooksPerClock; ++i) {
      if (look()) return SpinEnd::kSeen;
      pause_processor();
    }
    now_ns = base::monotonic_ns();
    if (interrupt.is_interrupted(now_ns)) return SpinEnd::kInterrupted;
  } while (now_ns < end_ns);
  return SpinEnd::kOver;
}

// Returns whether a wait must return to its caller after a signal handler has run.
inline bool must_return_after_signal() {
  return !base::has_interrupt_check() || base::is_interrupted();
}

}  // namespace verbena::message_queue
