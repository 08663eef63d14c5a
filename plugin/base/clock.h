// Time that only moves forward. Deadlines are absolute, so that a wait in many small steps stays bounded.
#pragma once

#include <cstdint>
#include <ctime>

namespace verbena::base {

inline constexpr int64_t kNsPerMs = 1'000'000;

inline int64_t monotonic_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);  // served by the vDSO: no system call
  return now.tv_sec * 1'000'000'000 + now.tv_nsec;
}

class Deadline {
 public:
  static Deadline after_ms(int64_t duration_ms) { return Deadline(monotonic_ns() + duration_ms * kNsPerMs); }
  explicit Deadline(int64_t at_ns) : at_ns_(at_ns) {}

  bool has_passed() const { return monotonic_ns() >= at_ns_; }
  // Returns the remaining time; 0 after the deadline.
  int64_t remaining_ms() const {
    const int64_t remaining_ns = at_ns_ - monotonic_ns();
    return remaining_ns <= 0 ? 0 : (remaining_ns + kNsPerMs - 1) / kNsPerMs;
  }

 private:
  int64_t at_ns_;
};

}  // namespace verbena::base
