// The slow path of waiting. A test that finds nothing new is cheap; one in many tests also reads the clock
// and checks the peer. The caller passes the time (monotonic nanoseconds). One thread at a time.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "protocol/wire.h"

namespace verbena::protocol {

// Decides when a wait is reported as a stall: after `stall_ns`, and each time the waiting time has doubled.
// 0: never.
class StallClock {
 public:
  explicit StallClock(int64_t stall_ns) : stall_ns_(stall_ns), next_ns_(stall_ns) {}

  void restart() { next_ns_ = stall_ns_; }
  bool is_line_due(int64_t waited_ns) {
    if (stall_ns_ == 0 || waited_ns < next_ns_) return false;
    next_ns_ = 2 * waited_ns;
    return true;
  }

 private:
  int64_t stall_ns_, next_ns_;
};

class WaitMonitor {
 public:
  explicit WaitMonitor(int64_t stall_ns) : stall_(stall_ns) {}

  void note_progress() { idle_tests_ = 0; }
  // `is_urgent` means that there is a known problem. Otherwise only one test in many is checked; on busy CPUs
  // these may take seconds.
  bool is_check_due(bool is_urgent) {
    ++idle_tests_;
    if (!is_urgent) return idle_tests_ % kTestsPerCheck == 0;
    idle_tests_ = std::max(idle_tests_, kTestsPerCheck);
    return true;
  }
  // Call this when a check is due, with the time. Returns true if the wait is a stall that must be reported.
  bool begin_check(int64_t now_ns) {
    if (idle_tests_ == kTestsPerCheck) {
      since_ns_ = now_ns;
      stall_.restart();
    }
    waited_ns_ = now_ns - since_ns_;
    return stall_.is_line_due(waited_ns_);
  }
  // Returns how long this wait has lasted at the last check.
  int64_t waited_ns() const { return waited_ns_; }
  // Returns since when no request has completed; 0 if the wait is too short to have been checked.
  int64_t waiting_since_ns() const { return idle_tests_ >= kTestsPerCheck ? since_ns_ : 0; }

 private:
  static constexpr uint64_t kTestsPerCheck = 256;

  StallClock stall_;
  int64_t waited_ns_ = 0;
  int64_t since_ns_ = 0;  // time of the first check of this wait
  uint64_t idle_tests_ = 0;
};

// Records since when each open request has been waiting for the same event. Posting a request records
// nothing; the first check of a wait does.
class WaitStamps {
 public:
  // `wait` is the event in the caller's numbering. Returns the beginning of the wait.
  int64_t note(uint32_t sequence, uint8_t wait, int64_t now_ns) {
    Stamp& stamp = stamps_[sequence % kMessageRing];
    if (stamp.since_ns == 0 || stamp.sequence != sequence || stamp.wait != wait)
      stamp = {now_ns, sequence, wait};
    return stamp.since_ns;
  }
  // All waits begin again.
  void restart() { stamps_ = {}; }
  // Returns 0 if not known.
  int64_t find(uint32_t sequence, uint8_t wait) const {
    const Stamp& stamp = stamps_[sequence % kMessageRing];
    return stamp.sequence == sequence && stamp.wait == wait ? stamp.since_ns : 0;
  }

 private:
  struct Stamp {
    int64_t since_ns = 0;
    uint32_t sequence = 0;
    uint8_t wait = 0;
  };
  std::array<Stamp, kMessageRing> stamps_;
};

// Records since when something that is due could not be sent, as seen by the checks of a long wait.
class HeldStamp {
 public:
  // `number` identifies what is due. Returns whether it was held back for `patience_ns`.
  bool is_overdue(bool is_held, uint32_t number, int64_t now_ns, int64_t patience_ns) {
    if (!is_held || number != number_) since_ns_ = 0;
    if (!is_held) return false;
    number_ = number;
    if (since_ns_ == 0) since_ns_ = now_ns;
    return now_ns - since_ns_ >= patience_ns;
  }
  void restart() { since_ns_ = 0; }

 private:
  uint32_t number_ = 0;
  int64_t since_ns_ = 0;  // 0: not held back, or not checked
};

}  // namespace verbena::protocol
