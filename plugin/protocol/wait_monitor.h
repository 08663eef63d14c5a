// The slow path of waiting: a test that finds nothing new is cheap, and one in many is worth a clock and a
// look at the peer. The caller gives the time (monotonic nanoseconds). One thread at a time.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "protocol/wire.h"

namespace verbena::protocol {

// When a wait is a stall worth a line: after `stall_ns`, and whenever that has doubled. 0: never.
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
  // `is_urgent`: something is known to be wrong. Otherwise one test in many; where others keep the cores busy
  // those may take seconds.
  bool is_check_due(bool is_urgent) {
    ++idle_tests_;
    if (!is_urgent) return idle_tests_ % kTestsPerCheck == 0;
    idle_tests_ = std::max(idle_tests_, kTestsPerCheck);
    return true;
  }
  // When a check is due: what time it is. True: the wait is a stall, and a line is due.
  bool begin_check(int64_t now_ns) {
    if (idle_tests_ == kTestsPerCheck) {
      since_ns_ = now_ns;
      stall_.restart();
    }
    waited_ns_ = now_ns - since_ns_;
    return stall_.is_line_due(waited_ns_);
  }
  // How long this wait has lasted, as of the last check.
  int64_t waited_ns() const { return waited_ns_; }
  // Since when nothing has become done; 0: not long enough ago to have looked.
  int64_t waiting_since_ns() const { return idle_tests_ >= kTestsPerCheck ? since_ns_ : 0; }

 private:
  static constexpr uint64_t kTestsPerCheck = 256;

  StallClock stall_;
  int64_t waited_ns_ = 0;
  int64_t since_ns_ = 0;  // when the first check of this wait was made
  uint64_t idle_tests_ = 0;
};

// Since when each open request is known to wait for what it waits for now. Nothing is stamped when it is
// posted: the first check of a wait does it for all.
class WaitStamps {
 public:
  // `wait`: what for, in the caller's terms. Since when.
  int64_t note(uint32_t sequence, uint8_t wait, int64_t now_ns) {
    Stamp& stamp = stamps_[sequence % kMessageRing];
    if (stamp.since_ns == 0 || stamp.sequence != sequence || stamp.wait != wait)
      stamp = {now_ns, sequence, wait};
    return stamp.since_ns;
  }
  // What they wait for begins anew.
  void restart() { stamps_ = {}; }
  // 0: not known.
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

// Since when something that is due cannot leave, as the checks of a long wait saw it.
class HeldStamp {
 public:
  // `number`: of what is due. Whether it has been held for `patience_ns`.
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
  int64_t since_ns_ = 0;  // 0: it was not, or nobody has looked
};

}  // namespace verbena::protocol
