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
  // All kinds but text travel as a number; text through its member.
  void (*set_number)(Parameters&, int64_t);
  int64_t (*get_number)(const Parameters&);
  std::string Parameters::*text;
};

std::span<const ParameterSpec> list_parameter_specs();

// What is wrong with a value; empty when it was good and `target` now holds it.
std::string set_parameter(const ParameterSpec& spec, std::string_view value, Parameters& target);

// In the same words that set_parameter reads.
std::string show_parameter(const ParameterSpec& spec, const Parameters& source);
std::string show_range(const ParameterSpec& spec);

}  // namespace verbena::base
