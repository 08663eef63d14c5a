#include "support/log_capture.h"

#include <algorithm>
#include <chrono>
#include <mutex>
#include <thread>

namespace verbena::verbs {
namespace {

std::mutex lines_mutex;
std::vector<std::pair<base::LogLevel, std::string>> lines;

void collect(base::LogLevel level, const char*, int, const char* text) {
  const std::lock_guard lock(lines_mutex);
  lines.emplace_back(level, text);
}

std::vector<std::string> select(base::LogLevel level) {
  const std::lock_guard lock(lines_mutex);
  std::vector<std::string> selected;
  for (const auto& [of_line, text] : lines) {
    if (of_line == level) selected.push_back(text);
  }
  return selected;
}

}  // namespace

LogCapture::LogCapture() {
  {
    const std::lock_guard lock(lines_mutex);
    lines.clear();
  }
  base::set_log_sink(&collect);
}

LogCapture::~LogCapture() {
  base::set_log_sink(nullptr);
}

std::vector<std::string> LogCapture::warnings() const {
  return select(base::LogLevel::kWarn);
}
std::vector<std::string> LogCapture::infos() const {
  return select(base::LogLevel::kInfo);
}

bool LogCapture::wait_for_warning(const std::string& part, int timeout_ms) const {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
  do {
    const auto all = warnings();
    if (std::any_of(all.begin(), all.end(),
                    [&](const auto& line) { return line.find(part) != std::string::npos; })) {
      return true;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  } while (std::chrono::steady_clock::now() < deadline);
  return false;
}

}  // namespace verbena::verbs
