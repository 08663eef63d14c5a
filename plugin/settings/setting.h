// A setting, and the syntax of its values. The tables (*.def) declare each setting once; begin.def explains
// their rows. Pure: does not read the environment, and logs nothing.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

namespace verbena::settings {

enum class SettingKind : uint8_t { kFlag, kNumber, kBytes, kText, kChoice };
enum SettingRules : uint8_t { kNoRule = 0, kPowerOfTwo = 1, kMayBeUnlimited = 2 };
enum SettingLevel : uint8_t { kUsual, kAdvanced };

// The value of the word "unlimited", for sizes that allow it.
inline constexpr int64_t kUnlimitedBytes = std::numeric_limits<int64_t>::max();

struct Setting {
  const char* name;     // of the environment variable
  const char* aliases;  // other environment names, separated by spaces
  SettingKind kind;
  uint8_t rules = kNoRule;  // SettingRules
  int64_t minimum = 0;      // for numbers and sizes
  int64_t maximum = 0;      // inclusive
  const char* unit = "";    // empty if there is none
  const char* words = "";   // for a choice, separated by |; the n-th word is the value n
  const char* doc;
  SettingLevel level = kUsual;
};

// A setting as a member of a struct. Settings of all kinds except text are read and written as a number; a
// text is accessed through its member.
template <typename Target>
struct SettingOf : Setting {
  void (*set_number)(Target&, int64_t);
  int64_t (*get_number)(const Target&);
  std::string Target::*text;
};

// A name that Verbena knows, and its meaning, or the setting to use instead.
struct NamedSetting {
  const char* name;
  const char* doc;
};

// The first of a setting's names that has a value which is not empty; the primary name comes first. `read` is
// std::getenv. Each variable is read once, because the application may change its environment at any time.
struct SettingOrigin {
  std::string name;
  const char* value;
};
std::optional<SettingOrigin> find_origin(const Setting& setting, char* (*read)(const char*));

// Returns a value without the blanks around it.
std::string_view trim(std::string_view text);

// Parses a value of any kind except text. Returns an error text; empty if `number` was set.
std::string parse_setting(const Setting& setting, std::string_view value, int64_t& number);

// Parses a value of an NCCL_* name, with NCCL's rules. It never fails. A negative number means the default,
// and for a flag every number except 0 means yes. A value above the range is replaced by the maximum, and any
// other invalid value by the default.
struct ForeignValue {
  bool is_set = false;  // false: `number` is unchanged
  std::string change;   // the replacement, for a log line; empty if nothing was replaced
};
ForeignValue parse_foreign_setting(const Setting& setting, std::string_view value, int64_t& number);

// Returns a text in the syntax that parse_setting reads.
std::string show_number(const Setting& setting, int64_t number);
// Returns the range with the unit, if there is one.
std::string describe_range(const Setting& setting);
std::string show_range(const Setting& setting);

// Sets the member of `target`. Returns an error text; empty if it was set.
template <typename Target>
std::string set_value(const SettingOf<Target>& setting, std::string_view value, Target& target) {
  if (setting.kind == SettingKind::kText) {
    target.*setting.text = trim(value);
    return {};
  }
  int64_t number = 0;
  std::string problem = parse_setting(setting, value, number);
  if (problem.empty()) setting.set_number(target, number);
  return problem;
}

template <typename Target>
std::string show_value(const SettingOf<Target>& setting, const Target& source) {
  return setting.kind == SettingKind::kText ? source.*setting.text
                                            : show_number(setting, setting.get_number(source));
}

}  // namespace verbena::settings
