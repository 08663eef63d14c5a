#include "base/parameters.h"

#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <sstream>
#include <string_view>
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

// The first of the parameter's names, the primary one first, that has a value; empty if none has.
std::string find_origin(const ParameterSpec& spec) {
  std::istringstream names(std::string(spec.name) + " " + spec.aliases);
  for (std::string name; names >> name;) {
    const char* value = std::getenv(name.c_str());
    if (value != nullptr && *value != '\0') return name;
  }
  return {};
}

Outcome load_one(const ParameterSpec& spec, LoadedParameters& target) {
  const std::string origin = find_origin(spec);
  if (origin.empty()) return {};
  const char* value = std::getenv(origin.c_str());
  const std::string problem = set_parameter(spec, value, target.values);
  if (problem.empty()) {
    target.origins[spec.name] = origin;
    return {};
  }
  const std::string via = origin == spec.name ? "" : " from " + origin;
  return fail(Status::kInvalidUsage, "parameters: %s%s: %s (value %s, range %s%s%s)", spec.name, via.c_str(),
              problem.c_str(), value, show_range(spec).c_str(), *spec.unit == '\0' ? "" : " ", spec.unit);
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

bool set_environment_default(const char* name, const char* value) {
  return std::getenv(name) == nullptr && setenv(name, value, 0) == 0;
}

}  // namespace verbena::base
