#pragma once
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>

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

}  // namespace verbena::tools
