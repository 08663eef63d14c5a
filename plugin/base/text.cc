#include "base/text.h"

#include <cstdarg>
#include <cstdio>

#include "base/clock.h"

namespace verbena::base {

void append(std::string& text, const char* format, ...) {
  char piece[512];  // longer texts are truncated
  va_list arguments;
  va_start(arguments, format);
  const int length = std::vsnprintf(piece, sizeof(piece), format, arguments);
  va_end(arguments);
  if (length > 0) text += piece;
}

void disarm(char* text) {
  constexpr unsigned char kFirstPrintable = 0x20, kDelete = 0x7f, kUtf8Latin = 0xc2, kEndOfC1 = 0xa0;
  for (auto* at = reinterpret_cast<unsigned char*>(text); *at != 0; ++at) {
    const bool is_c1 = *at == kUtf8Latin && at[1] >= 0x80 && at[1] < kEndOfC1;
    if (is_c1) at[1] = '?';
    if (is_c1 || *at < kFirstPrintable || *at == kDelete) *at = '?';
  }
}

std::string disarmed(std::string text) {
  disarm(text.data());
  return text;
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
