#include "softverbs/shared/config.h"

#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>

#include "settings/names.h"

namespace verbena::softverbs {
namespace {

using namespace settings;

constexpr SettingOf<Config> kSettings[] = {
#define VERBENA_TARGET Config
#include "settings/as_rows.def"
#include "settings/softverbs.def"
// Softverbs also reads this one of the plugin's settings.
#include "settings/as_rows.def"
    VERBENA_FLAG(encryption, "VERBENA_ENCRYPTION", "", false, "")
#include "settings/end.def"
#undef VERBENA_TARGET
};

void read_setting(const SettingOf<Config>& setting, Config& config) {
  const auto origin = find_origin(setting, getenv);
  if (!origin) return;
  const std::string problem = set_value(setting, origin->value, config);
  if (!problem.empty())
    warn("%s: %s (value %s, range %s), so softverbs uses %s", origin->name.c_str(), problem.c_str(),
         origin->value, describe_range(setting).c_str(), show_value(setting, config).c_str());
}

Config read_environment() {
  Config config;
  for (const auto& setting : kSettings) read_setting(setting, config);
  find_unknown_names(environ, [](std::string_view name, const char* nearest) {
    warn("%.*s is unknown and is ignored; did you mean %s?", static_cast<int>(name.size()), name.data(),
         nearest);
  });
  config.has_device_count = getenv("SOFTVERBS_DEVICES") != nullptr;
  for (char& letter : config.job) {
    if (letter == '/' || letter == '.') letter = '_';
  }
  config.job = config.job.substr(0, 64);
  // With few CPUs, a polling thread probably keeps its peer from running.
  const bool few_cpus = sysconf(_SC_NPROCESSORS_ONLN) < 8;
  if (config.spin_polls < 0) config.spin_polls = few_cpus ? 32 : 1000;
  if (config.worker_spin_us < 0) config.worker_spin_us = few_cpus ? 0 : 100;
  config.worker_spin_ns = 1000 * static_cast<uint64_t>(config.worker_spin_us);
  return config;
}

}  // namespace

const Config& get_config() {
  static const Config* config = new Config(read_environment());
  return *config;
}

void warn(const char* format, ...) {
  char text[512];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof(text), format, arguments);
  va_end(arguments);
  fprintf(stderr, "softverbs: %s\n", text);
}

}  // namespace verbena::softverbs
