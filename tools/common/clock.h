#pragma once
#include <chrono>
#include <cstdint>

namespace verbena::tools {

inline int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

inline int64_t deadline_after_s(double seconds) {
  return now_ns() + static_cast<int64_t>(seconds * 1e9);
}

}  // namespace verbena::tools
