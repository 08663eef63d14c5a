#include "base/parameters.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "base/log.h"
#include "settings/names.h"

namespace verbena::base {
namespace {

using namespace settings;

constexpr std::string_view kNamePrefix = "VERBENA_", kIbPrefix = "NCCL_IB_";
constexpr SettingOf<Parameters> kSettings[] = {
#define VERBENA_TARGET Parameters
#include "settings/as_rows.def"
#include "settings/verbena.def"
#undef VERBENA_TARGET
};
constexpr NamedSetting kIgnored[] = {
#define VERBENA_IGNORED(name, doc) {name, doc},
#include "settings/verbena.def"
};

const std::string kDefault = kDefaultOrigin;

struct LoadedParameters {
  Parameters values;
  std::map<std::string, std::string> origins;  // parameter name to the environment name that set it
};

LoadedParameters& loaded_parameters() {
  static LoadedParameters loaded;
  return loaded;
}

// A value that was chosen for another transport must not prevent the plugin from starting.
void load_foreign(const SettingOf<Parameters>& spec, const SettingOrigin& origin, LoadedParameters& target) {
  if (spec.kind == SettingKind::kText) {
    target.values.*spec.text = trim(origin.value);
    target.origins[spec.name] = origin.name;
    return;
  }
  int64_t number = 0;
  const auto [is_set, change] = parse_foreign_setting(spec, origin.value, number);
  if (is_set) {
    spec.set_number(target.values, number);
    target.origins[spec.name] = origin.name;
  }
  if (change.empty()) return;
  log_warn("parameters: %s from %s: %s, %s (value %s, range %s)", spec.name, origin.name.c_str(),
           change.c_str(), show_value(spec, target.values).c_str(), origin.value,
           describe_range(spec).c_str());
}

Outcome load_one(const SettingOf<Parameters>& spec, LoadedParameters& target) {
  const std::optional<SettingOrigin> origin = find_origin(spec);
  if (!origin) return {};
  if (!origin->name.starts_with(kNamePrefix)) return load_foreign(spec, *origin, target), Outcome();
  const std::string problem = set_value(spec, origin->value, target.values);
  if (problem.empty()) {
    target.origins[spec.name] = origin->name;
    return {};
  }
  return fail(Status::kInvalidUsage, "parameters: %s: %s (value %s, range %s)", spec.name, problem.c_str(),
              origin->value, describe_range(spec).c_str());
}

const NamedSetting* find_ignored(std::string_view name) {
  for (const NamedSetting& setting : kIgnored)
    if (name == setting.name) return &setting;
  return nullptr;
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
        log_warn("parameters: %s is set but has no effect on Verbena: %s", name.c_str(), ignored->doc);
      continue;
    }
    if (name.starts_with(kIbPrefix) && !is_known(name))
      log_warn("parameters: %s is unknown and has no effect on Verbena", name.c_str());
  }
  find_unknown_names(environ, [](std::string_view name, const char* nearest) {
    log_warn("parameters: %.*s is unknown and is ignored; did you mean %s?", static_cast<int>(name.size()),
             name.data(), nearest);
  });
}

}  // namespace

std::span<const SettingOf<Parameters>> list_parameter_settings() {
  return kSettings;
}

std::span<const NamedSetting> list_ignored_settings() {
  return kIgnored;
}

std::optional<SettingOrigin> find_origin(const Setting& setting) {
  return settings::find_origin(setting, std::getenv);
}

Outcome load_parameters() {
  LoadedParameters loaded;
  Outcome first_failure;
  for (const SettingOf<Parameters>& spec : kSettings) {
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
  for (const SettingOf<Parameters>& spec : kSettings) {
    if (name != spec.name || loaded_parameters().origins.contains(name)) continue;
    const std::string problem = set_value(spec, value, loaded_parameters().values);
    if (problem.empty()) {
      loaded_parameters().origins[name] = origin;
      continue;
    }
    log_warn("parameters: %s from %s: %s (value %s, range %s)", spec.name, origin.c_str(), problem.c_str(),
             value.c_str(), describe_range(spec).c_str());
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
