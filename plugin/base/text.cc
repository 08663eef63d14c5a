#include "base/text.h"

#include <cstdarg>
#include <cstdio>

#include "base/clock.h"

namespace verbena::base {

void append(std::string& text, const char* format, ...) {
  char piece[512];  // what is longer is cut
  va_list arguments;
  va_start(arguments, format);
  const int length = std::vsnprintf(piece, sizeof(piece), format, arguments);
  va_end(arguments);
  if (length > 0) text += piece;
}

std::string show_duration(int64_t duration_ns) {
  std::string text;
  const int64_t ms = duration_ns / kNsPerMs;
  if (ms < 1000) {
    append(text, "%lld ms", static_cast<long long>(ms));
  } else {
    append(text, "%lld.%lld s", static_cast<long long>(ms / 1000), static_cast<long long>(ms % 1000 / 100));
  }
  return text;
}

}  // namespace verbena::base
