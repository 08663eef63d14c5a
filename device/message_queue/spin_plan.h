// Plans when a wait for the next message spins and when it sleeps.
//
// Waking a sleeping process takes tens of microseconds, and spinning all the time takes a whole core.
// Messages of a pipeline, such as one per decode step, come at regular intervals. So an adaptive wait
// predicts when the next message comes: it sleeps until shortly before that time, spins until shortly after
// it, and then sleeps until it is woken. It spins for at most a quarter of the interval, or for the whole
// interval if that is too short for a sleep in between. If intervals are irregular, or no messages come, a
// wait sleeps.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>

#include "base/clock.h"
#include "device/message_queue/patience.h"

namespace verbena::message_queue {

class SpinPlan {
 public:
  // @param spin_us  how long each wait spins before it sleeps, microseconds; kForever if a wait never sleeps;
  //                 kAdaptive if the time depends on the prediction
  explicit SpinPlan(int64_t spin_us) : spin_us_(spin_us) {}

  // Returns the time until which a wait spins if there is nothing to return at `now_ns`.
  int64_t find_spin_end(int64_t now_ns) const {
    if (spin_us_ == kForever) return kNoDeadline;
    const int64_t end_ns = now_ns + (is_adaptive() ? kMinSpinUs : spin_us_) * kNsPerUs;
    if (!has_prediction() || now_ns < begin_ns()) return end_ns;
    return std::max(end_ns, last_ns_ + gap_ns_ + margin_ns_);
  }
  // Returns the time until which a wait sleeps after it has spun.
  int64_t find_sleep_end(int64_t now_ns) const {
    return has_prediction() && now_ns < begin_ns() ? begin_ns() : kNoDeadline;
  }
  bool is_adaptive() const { return spin_us_ == kAdaptive; }
  // Records that a message was seen at `now_ns`. Call it if is_adaptive().
  // @param was_awaited  true if the message came during a wait; otherwise it came at an unknown earlier time,
  //                     so the interval is unknown, too
  void record(int64_t now_ns, bool was_awaited) {
    if (was_awaited && last_ns_ != 0) learn(now_ns - last_ns_);
    last_ns_ = now_ns;
  }

 private:
  static constexpr int64_t kNsPerUs = 1000;
  static constexpr int64_t kMinSpinUs = 20;  // about as long as a wake-up takes
  // Sleeps end late by up to the kernel's timer slack of 50 us and a wake-up.
  static constexpr int64_t kMinMarginNs = 100 * kNsPerUs;
  static constexpr int64_t kMaxMarginNs = 2 * base::kNsPerMs;
  static constexpr int64_t kShare = 8;        // the margin before and after is at most interval / kShare
  static constexpr int kSmoothing = 8;        // each new interval has a weight of 1 / kSmoothing
  static constexpr uint32_t kMinLearned = 4;  // intervals before the first prediction

  void learn(int64_t gap_ns) {
    // A pause says nothing about the intervals after it.
    if (count_learned_ != 0 && gap_ns > 4 * gap_ns_) {
      count_learned_ = 0;
      return;
    }
    if (count_learned_++ == 0) {
      gap_ns_ = gap_ns;
      error_ns_ = 0;
    } else {
      const int64_t error_ns = gap_ns - gap_ns_;
      gap_ns_ += error_ns / kSmoothing;
      error_ns_ += (std::abs(error_ns) - error_ns_) / kSmoothing;
    }
    const int64_t wanted_ns = kMinMarginNs + 3 * error_ns_;
    const int64_t share_ns = std::min(gap_ns_ / kShare, kMaxMarginNs);
    is_short_ = share_ns < kMinMarginNs && gap_ns_ < kShare * kMinMarginNs;
    is_regular_ = is_short_ || wanted_ns <= 2 * share_ns;
    margin_ns_ = is_short_ ? gap_ns_ : std::min(wanted_ns, share_ns);
  }
  bool has_prediction() const { return count_learned_ >= kMinLearned && is_regular_; }
  int64_t begin_ns() const { return last_ns_ + gap_ns_ - margin_ns_; }

  int64_t spin_us_;
  int64_t last_ns_ = 0, gap_ns_ = 0, error_ns_ = 0, margin_ns_ = 0;
  uint32_t count_learned_ = 0;
  bool is_short_ = false, is_regular_ = false;
};

}  // namespace verbena::message_queue
