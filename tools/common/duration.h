#pragma once
#include <optional>
#include <string>
#include <string_view>

namespace verbena::tools {

// "30", "30s", "500ms", "2m", "1h", "0.5"; seconds where no unit is given.
std::optional<double> parse_duration_s(std::string_view text);

// The shortest spelling that parse_duration_s reads back: 30s, 500ms, 2m.
std::string format_duration(double seconds);

}  // namespace verbena::tools
