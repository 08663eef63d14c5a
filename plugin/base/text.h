// Functions that build texts for users.
#pragma once

#include <cstdint>
#include <string>

namespace verbena::base {

void append(std::string& text, const char* format, ...) __attribute__((format(printf, 2, 3)));

// Makes untrusted text safe to print, in place: replaces control characters, which could move the cursor or
// rename a terminal's window, by question marks. This includes 8-bit control characters in UTF-8.
void disarm(char* text);
std::string disarmed(std::string text);

// Returns a text such as `3.1 s` or `12 ms`.
std::string show_duration(int64_t duration_ns);

}  // namespace verbena::base
