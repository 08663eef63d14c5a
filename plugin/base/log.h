// The only functions that write to a stream. A line has the form `verbena: <object>: <what>: <cause> (<name>
// <value> <unit>)`. Callers pass the part after "verbena: ". Before init, lines go to stderr; afterwards to
// NCCL's logger. Thread safe. Not for the data path: between irecv and irecvConsumed these functions are
// called only after an error.
#pragma once

#include "base/status.h"

namespace verbena::base {

enum class LogLevel : uint8_t { kWarn, kInfo, kTrace };

// `subsystem` is NCCL's bit mask (net 0x10 by default, init 0x1).
using LogSink = void (*)(LogLevel level, const char* file, int line, const char* text);

// Sets the function that receives log lines; null restores stderr, which shows only warnings.
void set_log_sink(LogSink sink);

void log_warn(const char* format, ...) __attribute__((format(printf, 1, 2)));
void log_info(const char* format, ...) __attribute__((format(printf, 1, 2)));
void log_trace(const char* format, ...) __attribute__((format(printf, 1, 2)));

// Logs the line as a warning and returns the error, as in `return fail(Status::kRemote, "...")`.
Error fail(Status status, const char* format, ...) __attribute__((format(printf, 2, 3)));

// Like fail(), but logs at kInfo. For a connection end that the application or its peer closes.
Error fail_quietly(Status status, const char* format, ...) __attribute__((format(printf, 2, 3)));

// While such an object exists, warnings of this thread are logged at kInfo. For attempts that may fail, whose
// caller reports the result in one line.
class QuietLog {
 public:
  QuietLog();
  ~QuietLog();
  QuietLog(const QuietLog&) = delete;
  QuietLog& operator=(const QuietLog&) = delete;
};

// Returns the last line that this thread logged by one of these functions, without the prefix; empty if there
// was none.
const char* last_failure();

// Like fail(), for a failed system or verbs call: appends ": <strerror> (errno <n>)" and keeps the number.
Error fail_errno(Status status, int errno_value, const char* format, ...)
    __attribute__((format(printf, 3, 4)));

}  // namespace verbena::base
