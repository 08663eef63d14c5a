#include "settings/setting.h"

#include <strings.h>

#include <charconv>
#include <optional>
#include <sstream>
#include <utility>
#include <vector>

namespace verbena::settings {
namespace {

constexpr int64_t kKibibyte = 1024;

bool equals_ignoring_case(std::string_view a, std::string_view b) {
  return a.size() == b.size() && strncasecmp(a.data(), b.data(), a.size()) == 0;
}

std::vector<std::string_view> split_words(std::string_view words) {
  std::vector<std::string_view> result;
  for (size_t bar = words.find('|'); bar != std::string_view::npos; bar = words.find('|')) {
    result.push_back(words.substr(0, bar));
    words.remove_prefix(bar + 1);
  }
  result.push_back(words);
  return result;
}

// Accepts decimal numbers, and hexadecimal ones with 0x. Rejects a leading zero, because C would read such a
// number as octal, and users as decimal.
std::optional<int64_t> parse_integer(std::string_view text) {
  const bool negative = text.starts_with('-');
  if (negative) text.remove_prefix(1);
  int base = 10;
  if (text.starts_with("0x") || text.starts_with("0X")) {
    base = 16;
    text.remove_prefix(2);
  } else if (text.size() > 1 && text[0] == '0') {
    return std::nullopt;
  }
  if (text.empty() || text[0] == '-') return std::nullopt;
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return negative ? -value : value;
}

int64_t multiplier_of(char suffix) {
  switch (suffix | 0x20) {  // lower case
    case 'k':
      return kKibibyte;
    case 'm':
      return kKibibyte * kKibibyte;
    case 'g':
      return kKibibyte * kKibibyte * kKibibyte;
    default:
      return 1;
  }
}

std::optional<int64_t> parse_bytes(std::string_view text, bool may_be_unlimited) {
  if (may_be_unlimited && equals_ignoring_case(text, "unlimited")) return kUnlimitedBytes;
  if (text.empty()) return std::nullopt;
  const int64_t multiplier = multiplier_of(text.back());
  if (multiplier != 1) text.remove_suffix(1);
  const std::optional<int64_t> number = parse_integer(text);
  int64_t value = 0;
  if (!number || __builtin_mul_overflow(*number, multiplier, &value)) return std::nullopt;
  return value;
}

std::optional<int64_t> parse_flag(std::string_view text) {
  for (const char* word : {"0", "false", "no", "off"}) {
    if (equals_ignoring_case(text, word)) return 0;
  }
  for (const char* word : {"1", "true", "yes", "on"}) {
    if (equals_ignoring_case(text, word)) return 1;
  }
  return std::nullopt;
}

std::optional<int64_t> parse_choice(std::string_view text, std::string_view words) {
  int64_t value = 0;
  for (std::string_view word : split_words(words)) {
    if (equals_ignoring_case(text, word)) return value;
    ++value;
  }
  return std::nullopt;
}

std::optional<int64_t> parse_number(const Setting& setting, std::string_view value) {
  switch (setting.kind) {
    case SettingKind::kFlag:
      return parse_flag(value);
    case SettingKind::kNumber:
      return parse_integer(value);
    case SettingKind::kBytes:
      return parse_bytes(value, setting.rules & kMayBeUnlimited);
    case SettingKind::kChoice:
      return parse_choice(value, setting.words);
    case SettingKind::kText:
      break;
  }
  return std::nullopt;
}

bool is_in_range(const Setting& setting, int64_t number) {
  if (setting.kind == SettingKind::kChoice) return true;
  if ((setting.rules & kMayBeUnlimited) && number == kUnlimitedBytes) return true;
  return number >= setting.minimum && number <= setting.maximum;
}

const char* describe_malformed(SettingKind kind) {
  switch (kind) {
    case SettingKind::kFlag:
      return "not a boolean";
    case SettingKind::kBytes:
      return "not a size";
    case SettingKind::kChoice:
      return "not one of the allowed words";
    default:
      return "not a number";
  }
}

// Uses the largest suffix that leaves a whole number.
std::string show_bytes(int64_t value) {
  if (value == kUnlimitedBytes) return "unlimited";
  for (const char suffix : {'g', 'm', 'k'}) {
    const int64_t unit = multiplier_of(suffix);
    if (value >= unit && value % unit == 0) return std::to_string(value / unit) + suffix;
  }
  return std::to_string(value);
}

}  // namespace

std::string_view trim(std::string_view text) {
  const char* const blanks = " \t\r\n";
  const size_t begin = text.find_first_not_of(blanks);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(blanks) - begin + 1);
}

std::string parse_setting(const Setting& setting, std::string_view value, int64_t& number) {
  const std::optional<int64_t> parsed = parse_number(setting, trim(value));
  if (!parsed) return describe_malformed(setting.kind);
  if (!is_in_range(setting, *parsed)) return "out of range";
  if ((setting.rules & kPowerOfTwo) && (*parsed & (*parsed - 1)) != 0) return "not a power of two";
  number = *parsed;
  return {};
}

ForeignValue parse_foreign_setting(const Setting& setting, std::string_view value, int64_t& number) {
  const std::string problem = parse_setting(setting, value, number);
  if (problem.empty()) return {true, {}};
  const bool is_size = setting.kind == SettingKind::kBytes;
  const std::optional<int64_t> parsed =
      is_size ? parse_bytes(trim(value), false) : parse_integer(trim(value));
  const bool has_range = setting.kind != SettingKind::kChoice && parsed.has_value();
  if (has_range && *parsed < 0) return {false, {}};
  if (!has_range || *parsed <= setting.maximum) return {false, problem + ", so the plugin uses the default"};
  number = setting.maximum;
  return {true, setting.kind == SettingKind::kFlag ? "" : problem + ", so the plugin uses the maximum"};
}

std::optional<SettingOrigin> find_origin(const Setting& setting, char* (*read)(const char*)) {
  std::istringstream names(std::string(setting.name) + " " + setting.aliases);
  for (std::string name; names >> name;) {
    const char* const value = read(name.c_str());
    if (value != nullptr && *value != '\0') return SettingOrigin{std::move(name), value};
  }
  return std::nullopt;
}

std::string show_number(const Setting& setting, int64_t number) {
  switch (setting.kind) {
    case SettingKind::kChoice:
      return std::string(split_words(setting.words)[static_cast<size_t>(number)]);
    case SettingKind::kBytes:
      return show_bytes(number);
    default:
      return std::to_string(number);
  }
}

std::string describe_range(const Setting& setting) {
  return show_range(setting) + (*setting.unit == '\0' ? "" : " ") + setting.unit;
}

std::string show_range(const Setting& setting) {
  switch (setting.kind) {
    case SettingKind::kText:
      return "text";
    case SettingKind::kFlag:
    case SettingKind::kChoice: {
      std::string result;
      for (std::string_view word : split_words(setting.words)) {
        result += (result.empty() ? "" : " or ") + std::string(word);
      }
      return result;
    }
    default:
      break;
  }
  const bool bytes = setting.kind == SettingKind::kBytes;
  std::string result = bytes ? show_bytes(setting.minimum) + " to " + show_bytes(setting.maximum)
                             : std::to_string(setting.minimum) + " to " + std::to_string(setting.maximum);
  if (setting.rules & kMayBeUnlimited) result += " or unlimited";
  if (setting.rules & kPowerOfTwo) result += ", a power of two";
  return result;
}

}  // namespace verbena::settings
