// Text for people that grows piece by piece.
#pragma once

#include <cstdint>
#include <string>

namespace verbena::base {

void append(std::string& text, const char* format, ...) __attribute__((format(printf, 2, 3)));

// `3.1 s`, `12 ms`.
std::string show_duration(int64_t duration_ns);

}  // namespace verbena::base
