// Collects the lines that are logged while it lives.
#pragma once

#include <mutex>
#include <string>
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
