// The settings from the environment (SOFTVERBS_*), and the only function that writes to stderr.
#pragma once

#include <cstdint>

#include "settings/setting.h"

namespace verbena::softverbs {

inline constexpr uint32_t kMaxDevices = 8;

// The settings, read once at the first call of the library. settings/softverbs.def lists the SOFTVERBS_
// variables.
struct Config {
#include "settings/as_members.def"
#include "settings/softverbs.def"

  bool has_device_count = false;  // SOFTVERBS_DEVICES is set
  bool encryption = false;        // VERBENA_ENCRYPTION: encrypts data to other hosts; needs a key
  uint64_t worker_spin_ns = 0;
};

const Config& get_config();

// Writes one line to stderr, because the library cannot use the application's logger.
void warn(const char* format, ...) __attribute__((format(printf, 1, 2)));

}  // namespace verbena::softverbs
