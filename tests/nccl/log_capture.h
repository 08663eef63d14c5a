// NCCL's logger as the plugin sees it: keeps the lines. One for the process, as the function has no closure;
// thread safe.
#pragma once

#include <cstdarg>
#include <cstdio>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "nccl/abi.h"

namespace verbena::nccl::testing {

struct LogLine {
  abi::LogLevel level;
  unsigned long flags;
  std::string text;
};

class LogCapture {
 public:
  static LogCapture& get() {
    static LogCapture capture;
    return capture;
  }
  static void write(abi::LogLevel level, unsigned long flags, const char* /*file*/, int /*line*/,
                    const char* format, ...) {
    char text[2048];
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    const std::lock_guard lock(get().mutex_);
    get().lines_.push_back({level, flags, text});
  }

  std::vector<LogLine> take_lines() {
    const std::lock_guard lock(mutex_);
    return std::exchange(lines_, {});
  }
  // The warnings since the last take.
  std::vector<std::string> take_warnings() {
    std::vector<std::string> warnings;
    for (LogLine& line : take_lines()) {
      if (line.level == abi::kLogWarn) warnings.push_back(std::move(line.text));
    }
    return warnings;
  }

 private:
  std::mutex mutex_;
  std::vector<LogLine> lines_;
};

}  // namespace verbena::nccl::testing
