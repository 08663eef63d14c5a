#include "base/parameter_spec.h"

#include <strings.h>

#include <charconv>
#include <optional>
#include <vector>

namespace verbena::base {
namespace {

constexpr int64_t kKibibyte = 1024;

#define VERBENA_ACCESS(field)                                                                      \
  [](Parameters& p, int64_t value) { p.field = static_cast<decltype(Parameters::field)>(value); }, \
      [](const Parameters& p) { return static_cast<int64_t>(p.field); }

const ParameterSpec kSpecs[] = {
#define VERBENA_FLAG(field, name, aliases, fallback, doc) \
  {name, aliases, ParameterKind::kFlag, kNoRule, 0, 1, "", "0|1", doc, VERBENA_ACCESS(field), nullptr},
#define VERBENA_NUMBER(field, name, aliases, fallback, minimum, maximum, unit, doc) \
  {name, aliases, ParameterKind::kNumber, kNoRule, minimum, maximum, unit,          \
   "",   doc,     VERBENA_ACCESS(field),  nullptr},
#define VERBENA_BYTES(field, name, aliases, fallback, minimum, maximum, rules, doc) \
  {name, aliases, ParameterKind::kBytes, rules,  minimum, maximum, "bytes",         \
   "",   doc,     VERBENA_ACCESS(field), nullptr},
#define VERBENA_COUNT(field, name, aliases, fallback, minimum, maximum, rules, unit, doc) \
  {name, aliases, ParameterKind::kBytes, rules,  minimum, maximum, unit,                  \
   "",   doc,     VERBENA_ACCESS(field), nullptr},
#define VERBENA_TEXT(field, name, aliases, doc) \
  {name, aliases, ParameterKind::kText, kNoRule, 0, 0, "", "", doc, nullptr, nullptr, &Parameters::field},
#define VERBENA_CHOICE(field, type, name, aliases, fallback, words, doc) \
  {name, aliases, ParameterKind::kChoice, kNoRule, 0, 0, "", words, doc, VERBENA_ACCESS(field), nullptr},
#include "base/parameters.def"
};

const NamedSetting kIgnored[] = {
#define VERBENA_IGNORED(name, doc) {name, doc},
#include "base/parameters.def"
};

const NamedSetting kPython[] = {
#define VERBENA_PYTHON(name, doc) {name, doc},
#include "base/parameters.def"
};

bool equals_ignoring_case(std::string_view a, std::string_view b) {
  return a.size() == b.size() && strncasecmp(a.data(), b.data(), a.size()) == 0;
}

std::string_view trim(std::string_view text) {
  const char* const blanks = " \t\r\n";
  const size_t begin = text.find_first_not_of(blanks);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(blanks) - begin + 1);
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

// Decimal, or hexadecimal with 0x. Refuses a leading zero: C reads it as octal, people as decimal.
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

std::optional<int64_t> parse_number(const ParameterSpec& spec, std::string_view value) {
  switch (spec.kind) {
    case ParameterKind::kFlag:
      return parse_flag(value);
    case ParameterKind::kNumber:
      return parse_integer(value);
    case ParameterKind::kBytes:
      return parse_bytes(value, spec.rules & kMayBeUnlimited);
    case ParameterKind::kChoice:
      return parse_choice(value, spec.words);
    case ParameterKind::kText:
      break;
  }
  return std::nullopt;
}

bool is_in_range(const ParameterSpec& spec, int64_t number) {
  if (spec.kind == ParameterKind::kChoice) return true;
  if ((spec.rules & kMayBeUnlimited) && number == kUnlimitedBytes) return true;
  return number >= spec.minimum && number <= spec.maximum;
}

const char* describe_malformed(ParameterKind kind) {
  switch (kind) {
    case ParameterKind::kFlag:
      return "not a yes or no";
    case ParameterKind::kBytes:
      return "not a size";
    case ParameterKind::kChoice:
      return "not one of the allowed words";
    default:
      return "not a number";
  }
}

// The largest suffix that leaves a whole number.
std::string show_bytes(int64_t value) {
  if (value == kUnlimitedBytes) return "unlimited";
  for (const char suffix : {'g', 'm', 'k'}) {
    const int64_t unit = multiplier_of(suffix);
    if (value >= unit && value % unit == 0) return std::to_string(value / unit) + suffix;
  }
  return std::to_string(value);
}

}  // namespace

std::span<const ParameterSpec> list_parameter_specs() {
  return kSpecs;
}

std::string set_parameter(const ParameterSpec& spec, std::string_view value, Parameters& target) {
  value = trim(value);
  if (spec.kind == ParameterKind::kText) {
    target.*spec.text = value;
    return {};
  }
  const std::optional<int64_t> number = parse_number(spec, value);
  if (!number) return describe_malformed(spec.kind);
  if (!is_in_range(spec, *number)) return "out of range";
  if ((spec.rules & kPowerOfTwo) && (*number & (*number - 1)) != 0) return "not a power of two";
  spec.set_number(target, *number);
  return {};
}

ForeignValue set_foreign_parameter(const ParameterSpec& spec, std::string_view value, Parameters& target) {
  const std::string problem = set_parameter(spec, value, target);
  if (problem.empty()) return {true, {}};
  const bool is_size = spec.kind == ParameterKind::kBytes;
  const std::optional<int64_t> number =
      is_size ? parse_bytes(trim(value), false) : parse_integer(trim(value));
  const bool has_range = spec.kind != ParameterKind::kChoice && number.has_value();
  if (has_range && *number < 0) return {false, {}};
  if (!has_range || *number <= spec.maximum) return {false, problem + ", the default is used"};
  spec.set_number(target, spec.maximum);
  return {true, spec.kind == ParameterKind::kFlag ? "" : problem + ", the largest value is used"};
}

std::span<const NamedSetting> list_ignored_settings() {
  return kIgnored;
}

std::span<const NamedSetting> list_python_settings() {
  return kPython;
}

std::string show_parameter(const ParameterSpec& spec, const Parameters& source) {
  switch (spec.kind) {
    case ParameterKind::kText:
      return source.*spec.text;
    case ParameterKind::kChoice:
      return std::string(split_words(spec.words)[static_cast<size_t>(spec.get_number(source))]);
    case ParameterKind::kBytes:
      return show_bytes(spec.get_number(source));
    default:
      return std::to_string(spec.get_number(source));
  }
}

std::string show_range(const ParameterSpec& spec) {
  switch (spec.kind) {
    case ParameterKind::kText:
      return "text";
    case ParameterKind::kFlag:
    case ParameterKind::kChoice: {
      std::string result;
      for (std::string_view word : split_words(spec.words)) {
        result += (result.empty() ? "" : " or ") + std::string(word);
      }
      return result;
    }
    default:
      break;
  }
  const bool bytes = spec.kind == ParameterKind::kBytes;
  std::string result = bytes ? show_bytes(spec.minimum) + " to " + show_bytes(spec.maximum)
                             : std::to_string(spec.minimum) + " to " + std::to_string(spec.maximum);
  if (spec.rules & kMayBeUnlimited) result += " or unlimited";
  if (spec.rules & kPowerOfTwo) result += ", a power of two";
  return result;
}

}  // namespace verbena::base
