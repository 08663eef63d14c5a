#include "base/parameters.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
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

constexpr std::string_view kNamePrefix = "VERBENA_", kIbPrefix = "NCCL_IB_";
const std::string kDefault = kDefaultOrigin;

struct LoadedParameters {
  Parameters values;
  std::map<std::string, std::string> origins;  // parameter name to the environment name that set it
};

LoadedParameters& loaded_parameters() {
  static LoadedParameters loaded;
  return loaded;
}

struct Origin {
  std::string name;
  const char* value;
};

// The first of the parameter's names that has a value; the primary name comes first. Reads each variable
// once, because the application may change its environment at any time.
std::optional<Origin> find_origin(const ParameterSpec& spec) {
  std::istringstream names(std::string(spec.name) + " " + spec.aliases);
  for (std::string name; names >> name;) {
    const char* value = std::getenv(name.c_str());
    if (value != nullptr && *value != '\0') return Origin{std::move(name), value};
  }
  return std::nullopt;
}

std::string describe_range(const ParameterSpec& spec) {
  return show_range(spec) + (*spec.unit == '\0' ? "" : " ") + spec.unit;
}

// A value that was chosen for another transport must not keep the plugin from starting.
void load_foreign(const ParameterSpec& spec, const Origin& origin, LoadedParameters& target) {
  const auto [is_set, change] = set_foreign_parameter(spec, origin.value, target.values);
  if (is_set) target.origins[spec.name] = origin.name;
  if (change.empty()) return;
  log_warn("parameters: %s from %s: %s (%s; value %s, range %s)", spec.name, origin.name.c_str(),
           change.c_str(), show_parameter(spec, target.values).c_str(), origin.value,
           describe_range(spec).c_str());
}

Outcome load_one(const ParameterSpec& spec, LoadedParameters& target) {
  const std::optional<Origin> origin = find_origin(spec);
  if (!origin) return {};
  if (!origin->name.starts_with(kNamePrefix)) return load_foreign(spec, *origin, target), Outcome();
  const std::string problem = set_parameter(spec, origin->value, target.values);
  if (problem.empty()) {
    target.origins[spec.name] = origin->name;
    return {};
  }
  return fail(Status::kInvalidUsage, "parameters: %s: %s (value %s, range %s)", spec.name, problem.c_str(),
              origin->value, describe_range(spec).c_str());
}

bool is_known(std::string_view name) {
  for (const ParameterSpec& spec : list_parameter_specs()) {
    std::istringstream names(std::string(spec.name) + " " + spec.aliases);
    for (std::string known; names >> known;)
      if (name == known) return true;
  }
  for (const NamedSetting& setting : list_python_settings()) {
    if (name == setting.name) return true;
  }
  return false;
}

const NamedSetting* find_ignored(std::string_view name) {
  for (const NamedSetting& setting : list_ignored_settings())
    if (name == setting.name) return &setting;
  return nullptr;
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

// Sets a variable without freeing the old environment array, because NCCL and the application read the
// environment without a lock, and setenv would move and free it. A longer copy replaces the array. Returns
// false, and does nothing, if the environment changed at the same time. Each copy keeps pointers to its new
// text and to the previous array after its end, so nothing is lost.
std::atomic<char**> last_array{nullptr};

bool extend_environment(char* assignment) {
  const std::atomic_ref<char**> current(environ);
  char** before = current.load(std::memory_order_acquire);
  size_t count = 0;
  while (before != nullptr && before[count] != nullptr) ++count;
  auto** const longer = static_cast<char**>(std::malloc((count + 4) * sizeof(char*)));
  if (longer == nullptr) return true;  // fails like setenv
  std::copy_n(before, count, longer);
  longer[count] = assignment;
  longer[count + 1] = nullptr;
  longer[count + 2] = assignment;
  const bool is_whole = before == nullptr || before[count] == nullptr;
  if (!is_whole || !current.compare_exchange_strong(before, longer, std::memory_order_release)) {
    std::free(longer);
    return false;
  }
  char** last = last_array.load();
  do longer[count + 3] = reinterpret_cast<char*>(last);
  while (!last_array.compare_exchange_weak(last, longer));
  return true;
}

void warn_about_names_without_effect() {
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view assignment = *entry;
    const size_t end = std::min(assignment.find('='), assignment.size());
    const std::string name(assignment.substr(0, end));
    if (const NamedSetting* ignored = find_ignored(name)) {
      if (end + 1 < assignment.size())
        log_warn("parameters: %s is set and has no effect here: %s", name.c_str(), ignored->doc);
      continue;
    }
    const bool is_ours = name.starts_with(kNamePrefix);
    if ((!is_ours && !name.starts_with(kIbPrefix)) || is_known(name)) continue;
    if (is_ours) {
      log_warn("parameters: %s: unknown and ignored: did you mean %s?", name.c_str(), find_closest(name));
    } else {
      log_warn("parameters: %s is unknown and has no effect here", name.c_str());
    }
  }
}

}  // namespace

Outcome load_parameters() {
  LoadedParameters loaded;
  Outcome first_failure;
  for (const ParameterSpec& spec : list_parameter_specs()) {
    const Outcome outcome = load_one(spec, loaded);
    if (!outcome && first_failure.is_ok()) first_failure = outcome;
  }
  warn_about_names_without_effect();
  if (first_failure.is_ok()) loaded_parameters() = std::move(loaded);
  return first_failure;
}

const Parameters& parameters() {
  return loaded_parameters().values;
}

const std::string& parameter_origin(const std::string& name) {
  const auto found = loaded_parameters().origins.find(name);
  return found == loaded_parameters().origins.end() ? kDefault : found->second;
}

void set_parameter_default(const std::string& name, const std::string& value, const std::string& origin) {
  for (const ParameterSpec& spec : list_parameter_specs()) {
    if (name != spec.name || loaded_parameters().origins.contains(name)) continue;
    const std::string problem = set_parameter(spec, value, loaded_parameters().values);
    if (problem.empty()) {
      loaded_parameters().origins[name] = origin;
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
  if (std::getenv(name) != nullptr) return false;
  const size_t text_bytes = std::strlen(name) + 1 + std::strlen(value) + 1;
  auto* const assignment = static_cast<char*>(std::malloc(text_bytes));
  if (assignment == nullptr) return false;
  std::snprintf(assignment, text_bytes, "%s=%s", name, value);
  while (!extend_environment(assignment)) continue;
  return true;
}

}  // namespace verbena::base
