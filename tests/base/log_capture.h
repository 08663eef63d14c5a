// Collects the lines that are logged while it lives.
#pragma once

#include <algorithm>
#include <chrono>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/log.h"

namespace verbena::base {

class LogCapture {
 public:
  LogCapture() {
    clear();
    set_log_sink(&LogCapture::collect);
  }
  ~LogCapture() { set_log_sink(nullptr); }
  LogCapture(const LogCapture&) = delete;
  LogCapture& operator=(const LogCapture&) = delete;

  std::vector<std::string> warnings() const { return lines_of(LogLevel::kWarn); }
  std::vector<std::string> lines_of(LogLevel level) const {
    const std::lock_guard lock(mutex_);
    std::vector<std::string> result;
    for (const auto& [line_level, text] : lines_) {
      if (line_level == level) result.push_back(text);
    }
    return result;
  }
  // Waits for a warning that contains `part`; false after timeout_ms.
  bool wait_for_warning(const std::string& part, int timeout_ms) const {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
    const auto has_part = [&](const std::string& line) { return line.find(part) != std::string::npos; };
    while (!std::ranges::any_of(warnings(), has_part)) {
      if (std::chrono::steady_clock::now() >= deadline) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return true;
  }
  void clear() {
    const std::lock_guard lock(mutex_);
    lines_.clear();
  }

 private:
  static void collect(LogLevel level, const char*, int, const char* text) {
    const std::lock_guard lock(mutex_);
    lines_.emplace_back(level, text);
  }

  inline static std::mutex mutex_;
  inline static std::vector<std::pair<LogLevel, std::string>> lines_;
};

}  // namespace verbena::base
