#include "base/log.h"

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstring>

#include "base/text.h"

namespace verbena::base {
namespace {

constexpr size_t kLineBytes = 1024;  // longer lines are truncated
constexpr char kPrefix[] = "verbena: ";
// printf-like functions do not know the file of their caller; the object in the line shows where it comes
// from.
constexpr char kFile[] = "verbena";

// Stored with release and loaded with acquire, so that every thread that logs sees the data that the owner of
// the sink prepared.
std::atomic<LogSink> g_sink{nullptr};

thread_local char t_last_failure[kLineBytes] = "";
thread_local int t_quiet_logs = 0;

class Line {
 public:
  Line() { append("%s", kPrefix); }

  void append_list(const char* format, va_list arguments) __attribute__((format(printf, 2, 0))) {
    const int wanted = std::vsnprintf(text_ + length_, kLineBytes - length_, format, arguments);
    if (wanted < 0) return;
    const size_t room = kLineBytes - 1 - length_;
    length_ += static_cast<size_t>(wanted) < room ? static_cast<size_t>(wanted) : room;
  }

  void append(const char* format, ...) __attribute__((format(printf, 2, 3))) {
    va_list arguments;
    va_start(arguments, format);
    append_list(format, arguments);
    va_end(arguments);
  }

  char* text() { return text_; }

 private:
  char text_[kLineBytes] = {};
  size_t length_ = 0;
};

// Lines may contain text from peers, so control characters are replaced.
void emit(LogLevel level, Line& line) {
  const int saved_errno = errno;
  if (t_quiet_logs != 0 && level == LogLevel::kWarn) level = LogLevel::kInfo;
  disarm(line.text());
  if (const LogSink sink = g_sink.load(std::memory_order_acquire)) {
    sink(level, kFile, 0, line.text());
  } else if (level == LogLevel::kWarn) {
    std::fprintf(stderr, "%s\n", line.text());  // one call: lines of several threads do not mix
  }
  errno = saved_errno;
}

void emit_failure(Line& line, LogLevel level = LogLevel::kWarn) {
  emit(level, line);
  std::strncpy(t_last_failure, line.text() + sizeof(kPrefix) - 1, kLineBytes - 1);
}

}  // namespace

void set_log_sink(LogSink sink) {
  g_sink.store(sink, std::memory_order_release);
}

#define VERBENA_LINE                   \
  Line line;                           \
  va_list arguments;                   \
  va_start(arguments, format);         \
  line.append_list(format, arguments); \
  va_end(arguments)

void log_warn(const char* format, ...) {
  VERBENA_LINE;
  emit(LogLevel::kWarn, line);
}

void log_info(const char* format, ...) {
  VERBENA_LINE;
  emit(LogLevel::kInfo, line);
}

void log_trace(const char* format, ...) {
  VERBENA_LINE;
  emit(LogLevel::kTrace, line);
}

Error fail(Status status, const char* format, ...) {
  VERBENA_LINE;
  emit_failure(line);
  return Error{status, 0};
}

Error fail_quietly(Status status, const char* format, ...) {
  VERBENA_LINE;
  emit_failure(line, LogLevel::kInfo);
  return Error{status, 0};
}

Error fail_errno(Status status, int errno_value, const char* format, ...) {
  VERBENA_LINE;
  char buffer[128];
  line.append(": %s (errno %d)", strerror_r(errno_value, buffer, sizeof buffer), errno_value);
  emit_failure(line);
  return Error{status, errno_value};
}

QuietLog::QuietLog() {
  ++t_quiet_logs;
}

QuietLog::~QuietLog() {
  --t_quiet_logs;
}

const char* last_failure() {
  return t_last_failure;
}

}  // namespace verbena::base
