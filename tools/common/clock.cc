#include "common/clock.h"

#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>

namespace verbena::tools {
namespace {

struct Unit {
  std::string_view name;
  double seconds;
};
constexpr std::array<Unit, 7> kUnits{
    {{"", 1}, {"s", 1}, {"ms", 1e-3}, {"us", 1e-6}, {"m", 60}, {"min", 60}, {"h", 3600}}};

std::string format_number(double number, const char* unit) {
  char text[48];
  std::snprintf(text, sizeof text, "%g%s", number, unit);
  return text;
}

}  // namespace

std::optional<double> parse_duration_s(std::string_view text) {
  double number = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
  if (error != std::errc() || !(number >= 0)) return std::nullopt;
  const std::string_view suffix = text.substr(static_cast<size_t>(end - text.data()));
  for (const Unit& unit : kUnits) {
    if (suffix == unit.name) return number * unit.seconds;
  }
  return std::nullopt;
}

std::string format_duration(double seconds) {
  if (seconds > 0 && seconds < 1) return format_number(seconds * 1e3, "ms");
  const auto is_whole = [&](double unit_s) { return seconds > 0 && std::fmod(seconds, unit_s) == 0; };
  if (is_whole(3600)) return format_number(seconds / 3600, "h");
  if (is_whole(60) && seconds > 60) return format_number(seconds / 60, "m");
  return format_number(seconds, "s");
}

}  // namespace verbena::tools
