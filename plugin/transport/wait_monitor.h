// The slow path of waiting: a test that finds nothing new is cheap, and one in many is worth a clock and a
// look at the peer. Data thread only.
#pragma once

#include <cstdint>

#include "base/clock.h"

namespace verbena::transport {

class WaitMonitor {
 public:
  // 0: never calls a wait a stall.
  explicit WaitMonitor(int64_t stall_ms) : stall_ns_(stall_ms * base::kNsPerMs) {}

  void note_progress() { idle_tests_ = 0; }
  bool is_check_due() { return ++idle_tests_ % kTestsPerCheck == 0; }
  // To be asked when a check is due. True once in a wait, when it has lasted too long.
  bool is_stall_new() {
    const int64_t now_ns = base::monotonic_ns();
    if (idle_tests_ == kTestsPerCheck) {
      since_ns_ = now_ns;
      is_reported_ = false;
    }
    waited_ns_ = now_ns - since_ns_;
    if (stall_ns_ == 0 || is_reported_ || waited_ns_ < stall_ns_) return false;
    is_reported_ = true;
    return true;
  }
  // How long this wait has lasted, as of the last is_stall_new().
  int64_t waited_ns() const { return waited_ns_; }

 private:
  static constexpr uint64_t kTestsPerCheck = 256;

  int64_t stall_ns_;
  int64_t waited_ns_ = 0;
  int64_t since_ns_ = 0;  // when the first check of this wait was made
  uint64_t idle_tests_ = 0;
  bool is_reported_ = false;
};

}  // namespace verbena::transport
