// When a reader's next message is due, from the gap between the last two: an engine's decode steps take
// equally long. A reader that sleeps is woken tens of microseconds after a message; one that wakes a little
// before the message, and spins, is not. Pure.
#pragma once

#include <cstdint>

#include "base/clock.h"

namespace verbena::message_queue {

class Pace {
 public:
  // Spins from an eighth of the gap before the message is due until an eighth behind: less than a quarter of
  // a processor, whatever comes.
  static constexpr int64_t kMarginPart = 8;
  // A timer of the kernel may be 50 us late. Behind longer gaps nobody minds the wake-up.
  static constexpr int64_t kMinGapNs = base::kNsPerMs, kMaxGapNs = 100 * base::kNsPerMs;

  // Longer than a spinning thread is away unless others want its processor. A message then waits for the
  // thread's turn, milliseconds, whereas a thread that sleeps gets its turn when it is woken: so it sleeps
  // through so many messages.
  static constexpr int64_t kMostAwayNs = base::kNsPerMs / 10;
  static constexpr uint32_t kSleptMessages = 128;

  void on_message(int64_t now_ns) {
    const int64_t gap_ns = now_ns - last_ns_, margin_ns = gap_ns / kMarginPart;
    if (count_slept_ != 0) --count_slept_;
    const bool is_pace = count_slept_ == 0 && last_ns_ != 0 && gap_ns >= kMinGapNs && gap_ns <= kMaxGapNs;
    begin_ns_ = is_pace ? now_ns + gap_ns - margin_ns : 0;
    end_ns_ = is_pace ? now_ns + gap_ns + margin_ns : 0;
    last_ns_ = now_ns;
  }
  void on_preempted() {
    count_slept_ = kSleptMessages;
    begin_ns_ = end_ns_ = 0;
  }
  // Until when a wait that begins now spins; in the past: not at all.
  int64_t spin_end_ns(int64_t now_ns) const { return now_ns >= begin_ns_ ? end_ns_ : 0; }
  // Until when a wait sleeps at most.
  int64_t sleep_end_ns(int64_t now_ns) const { return now_ns < begin_ns_ ? begin_ns_ : INT64_MAX; }

 private:
  int64_t last_ns_ = 0, begin_ns_ = 0, end_ns_ = 0;
  uint32_t count_slept_ = 0;
};

}  // namespace verbena::message_queue
