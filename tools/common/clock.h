#pragma once
#include <sched.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>

#include "common/error.h"

namespace verbena::tools {

inline int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

inline int64_t deadline_after_s(double seconds) {
  return now_ns() + static_cast<int64_t>(seconds * 1e9);
}

// "30 s", "0.5 s".
inline std::string format_seconds(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%g s", seconds);
  return text;
}

// Bounds a polling loop: call idle() after each round without progress. It yields the core now and then, so
// that two polling processes can share one, and throws HangError after the deadline.
class Spinner {
 public:
  explicit Spinner(double timeout_s) : timeout_s_(timeout_s), deadline_ns_(deadline_after_s(timeout_s)) {}

  void idle(const char* what) {
    if (++rounds_ % kRoundsPerYield != 0) return;
    sched_yield();
    if (rounds_ % kRoundsPerClock == 0 && now_ns() > deadline_ns_) {
      throw HangError(std::string(what) + ": no progress for " + format_seconds(timeout_s_));
    }
  }

 private:
  static constexpr uint64_t kRoundsPerYield = 256;
  static constexpr uint64_t kRoundsPerClock = 1024;

  double timeout_s_;
  int64_t deadline_ns_;
  uint64_t rounds_ = 0;
};

// The default of --timeout in every tool: the limit of any one step. It is longer than the 34 s after which a
// NIC gives up on a silent peer at VERBENA_ACK_TIMEOUT 20 and VERBENA_RETRY_COUNT 7, so that the tool reports
// the NIC's error and not only a timeout.
inline constexpr double kStepTimeoutS = 60;

// Parses a time such as "30s", "500ms", "2m", "1h" or "0.5". A number without a unit is in seconds. Returns
// nullopt for other text.
std::optional<double> parse_duration_s(std::string_view text);

// The shortest form that parse_duration_s reads: 30s, 500ms, 2m.
std::string format_duration(double seconds);

}  // namespace verbena::tools
