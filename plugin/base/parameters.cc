#include "base/parameters.h"

#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <optional>
#include <sstream>
#include <string_view>
#include <utility>
#include <vector>

#include "base/edit_distance.h"
#include "base/log.h"
#include "base/parameter_spec.h"

namespace verbena::base {
namespace {

constexpr std::string_view kPrefix = "VERBENA_";
const std::string kDefaultOrigin = "default";

struct LoadedParameters {
  Parameters values;
  std::map<std::string, std::string> origins;  // parameter name to the environment name that set it
};

LoadedParameters& current() {
  static LoadedParameters loaded;
  return loaded;
}

struct Origin {
  std::string name;
  const char* value;
};

// The first of the parameter's names, the primary one first, that has a value. Read once: the application may
// change its environment at any time.
std::optional<Origin> find_origin(const ParameterSpec& spec) {
  std::istringstream names(std::string(spec.name) + " " + spec.aliases);
  for (std::string name; names >> name;) {
    const char* value = std::getenv(name.c_str());
    if (value != nullptr && *value != '\0') return Origin{std::move(name), value};
  }
  return std::nullopt;
}

Outcome load_one(const ParameterSpec& spec, LoadedParameters& target) {
  const std::optional<Origin> origin = find_origin(spec);
  if (!origin) return {};
  const std::string problem = set_parameter(spec, origin->value, target.values);
  if (problem.empty()) {
    target.origins[spec.name] = origin->name;
    return {};
  }
  const std::string via = origin->name == spec.name ? "" : " from " + origin->name;
  return fail(Status::kInvalidUsage, "parameters: %s%s: %s (value %s, range %s%s%s)", spec.name, via.c_str(),
              problem.c_str(), origin->value, show_range(spec).c_str(), *spec.unit == '\0' ? "" : " ",
              spec.unit);
}

bool is_known(std::string_view name) {
  for (const ParameterSpec& spec : list_parameter_specs()) {
    if (name == spec.name) return true;
  }
  return false;
}

const char* find_closest(std::string_view name) {
  const char* closest = nullptr;
  size_t fewest_edits = 0;
  for (const ParameterSpec& spec : list_parameter_specs()) {
    const size_t edits = count_edits(name, spec.name);
    if (closest == nullptr || edits < fewest_edits) {
      closest = spec.name;
      fewest_edits = edits;
    }
  }
  return closest;
}

void warn_about_unknown_names() {
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view assignment = *entry;
    const std::string name(assignment.substr(0, assignment.find('=')));
    if (!name.starts_with(kPrefix) || is_known(name)) continue;
    log_warn("parameters: %s: unknown and ignored: did you mean %s?", name.c_str(), find_closest(name));
  }
}

}  // namespace

Outcome load_parameters() {
  LoadedParameters loaded;
  Outcome first_failure;
  for (const ParameterSpec& spec : list_parameter_specs()) {
    const Outcome outcome = load_one(spec, loaded);
    if (!outcome && first_failure) first_failure = outcome;
  }
  warn_about_unknown_names();
  if (first_failure) current() = std::move(loaded);
  return first_failure;
}

const Parameters& parameters() {
  return current().values;
}

const std::string& parameter_origin(const std::string& name) {
  const auto found = current().origins.find(name);
  return found == current().origins.end() ? kDefaultOrigin : found->second;
}

void set_parameter_default(const std::string& name, const std::string& value, const std::string& origin) {
  for (const ParameterSpec& spec : list_parameter_specs()) {
    if (name != spec.name || current().origins.contains(name)) continue;
    const std::string problem = set_parameter(spec, value, current().values);
    if (problem.empty()) {
      current().origins[name] = origin;
      continue;
    }
    log_warn("parameters: %s from %s: %s (value %s, range %s %s)", spec.name, origin.c_str(), problem.c_str(),
             value.c_str(), show_range(spec).c_str(), spec.unit);
  }
}

std::string read_launcher_variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

bool set_environment_default(const char* name, const char* value) {
  return std::getenv(name) == nullptr && setenv(name, value, 0) == 0;
}

}  // namespace verbena::base
