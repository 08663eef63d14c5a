#pragma once
#include <sched.h>

#include <cstdint>
#include <string>

#include "common/clock.h"
#include "common/error.h"

namespace verbena::tools {

// Bounds a polling loop: call idle() whenever a round has moved nothing. It gives the core away now and then,
// so that two polling processes can share one, and throws when the deadline has passed.
class Spinner {
 public:
  explicit Spinner(double timeout_s) : timeout_s_(timeout_s), deadline_ns_(deadline_after_s(timeout_s)) {}

  void idle(const char* what) {
    if (++rounds_ % kRoundsPerYield != 0) return;
    sched_yield();
    if (rounds_ % kRoundsPerClock == 0 && now_ns() > deadline_ns_) {
      throw HangError(std::string(what) + ": nothing for " + format_seconds(timeout_s_));
    }
  }

 private:
  static constexpr uint64_t kRoundsPerYield = 256;
  static constexpr uint64_t kRoundsPerClock = 1024;

  double timeout_s_;
  int64_t deadline_ns_;
  uint64_t rounds_ = 0;
};

}  // namespace verbena::tools
