// The table of parameters.def at run time, and the grammar of values. Pure: reads no environment, logs
// nothing.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/parameters.h"

namespace verbena::base {

enum class ParameterKind : uint8_t { kFlag, kNumber, kBytes, kText, kChoice };
enum ParameterRules : uint8_t { kNoRule = 0, kPowerOfTwo = 1, kMayBeUnlimited = 2 };

struct ParameterSpec {
  const char* name;     // the environment name, VERBENA_*
  const char* aliases;  // other environment names, separated by spaces
  ParameterKind kind;
  uint8_t rules;      // ParameterRules
  int64_t minimum;    // of numbers and sizes
  int64_t maximum;    // inclusive
  const char* unit;   // "" where there is none
  const char* words;  // of a choice, separated by |; the n-th is the value n
  const char* doc;
  // All kinds except text are read and written as a number; text through its member.
  void (*set_number)(Parameters&, int64_t);
  int64_t (*get_number)(const Parameters&);
  std::string Parameters::*text;
};

std::span<const ParameterSpec> list_parameter_specs();

// A setting that the plugin knows by name only.
struct NamedSetting {
  const char* name;
  const char* doc;
};
// Settings of NCCL's own IB transport that have no effect here. `doc` says what the plugin does or offers
// instead.
std::span<const NamedSetting> list_ignored_settings();
// Settings that the Python package reads.
std::span<const NamedSetting> list_python_settings();

// Sets the parameter in `target`. Returns what is wrong with the value; empty if it was set.
std::string set_parameter(const ParameterSpec& spec, std::string_view value, Parameters& target);

// Sets the parameter from the value of an NCCL_* name. This follows NCCL's rules and never fails: a negative
// number means the default, and any number except 0 means yes. A value above the range is replaced by the end
// of the range, and any other invalid value by the default.
struct ForeignValue {
  bool is_set = false;  // false: `target` is unchanged
  std::string change;   // what was done instead, for a log line; empty: nothing to report
};
ForeignValue set_foreign_parameter(const ParameterSpec& spec, std::string_view value, Parameters& target);

// Return a parameter's value and its range as text, in the syntax that set_parameter() reads.
std::string show_parameter(const ParameterSpec& spec, const Parameters& source);
std::string show_range(const ParameterSpec& spec);

}  // namespace verbena::base
