#pragma once
#include <optional>
#include <string>
#include <string_view>

namespace verbena::tools {

// Of --timeout in every tool: how long any one step may take. Longer than the 34 s after which a NIC gives up
// on a silent peer at VERBENA_ACK_TIMEOUT 20 and VERBENA_RETRY_COUNT 7, so that its cause is told and not the
// silence.
inline constexpr double kStepTimeoutS = 60;

// "30", "30s", "500ms", "2m", "1h", "0.5"; seconds where no unit is given.
std::optional<double> parse_duration_s(std::string_view text);

// The shortest spelling that parse_duration_s reads back: 30s, 500ms, 2m.
std::string format_duration(double seconds);

}  // namespace verbena::tools
