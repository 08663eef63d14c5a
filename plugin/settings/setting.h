// A setting, and the grammar of values. The tables (*.def) declare settings once; begin.def explains their
// rows. Pure: reads no environment, logs nothing.
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
  int64_t minimum = 0;      // of numbers and sizes
  int64_t maximum = 0;      // inclusive
  const char* unit = "";    // "" where there is none
  const char* words = "";   // of a choice, separated by |; the n-th is the value n
  const char* doc;
  SettingLevel level = kUsual;
};

// A setting as a member of a struct. All kinds except text are read and written as a number; text through its
// member.
template <typename Target>
struct SettingOf : Setting {
  void (*set_number)(Target&, int64_t);
  int64_t (*get_number)(const Target&);
  std::string Target::*text;
};

// A name that Verbena knows, and what it means or what to set instead.
struct NamedSetting {
  const char* name;
  const char* doc;
};

// The first of a setting's names that has a value that is not empty; the primary name comes first. `read` is
// std::getenv. Reads each variable once, because the application may change its environment at any time.
struct SettingOrigin {
  std::string name;
  const char* value;
};
std::optional<SettingOrigin> find_origin(const Setting& setting, char* (*read)(const char*));

// A value without the blanks around it.
std::string_view trim(std::string_view text);

// Reads a value of any kind but text. Returns what is wrong with the value; empty if `number` was set.
std::string parse_setting(const Setting& setting, std::string_view value, int64_t& number);

// The same for a value of an NCCL_* name. It follows NCCL's rules and never fails: a negative number means
// the default, and every number but 0 is a yes. A value above the range counts as the end of the range, any
// other value that does not fit as the default.
struct ForeignValue {
  bool is_set = false;  // false: `number` is unchanged
  std::string change;   // what was done instead, for a log line; empty: nothing to report
};
ForeignValue parse_foreign_setting(const Setting& setting, std::string_view value, int64_t& number);

// In the syntax that parse_setting reads.
std::string show_number(const Setting& setting, int64_t number);
// With the unit, if there is one.
std::string describe_range(const Setting& setting);
std::string show_range(const Setting& setting);

// Sets the member of `target`. Returns what is wrong with the value; empty if it was set.
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
