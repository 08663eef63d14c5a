#include "softverbs/shared/config.h"

#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>

namespace verbena::softverbs {
namespace {

uint64_t read_number(const char* name, uint64_t fallback, uint64_t lowest, uint64_t highest) {
  const char* text = getenv(name);
  if (text == nullptr || *text == '\0') return fallback;
  char* end = nullptr;
  const uint64_t value = strtoull(text, &end, 0);
  if (end != text && *end == '\0' && value >= lowest && value <= highest) return value;
  warn("%s: '%s' is not a number in %llu..%llu: using %llu", name, text,
       static_cast<unsigned long long>(lowest), static_cast<unsigned long long>(highest),
       static_cast<unsigned long long>(fallback));
  return fallback;
}

std::string read_text(const char* name, const char* fallback) {
  const char* text = getenv(name);
  return text != nullptr && *text != '\0' ? text : fallback;
}

std::string read_job() {
  std::string job = read_text("SOFTVERBS_JOB", "");
  for (char& letter : job) {
    if (letter == '/' || letter == '.') letter = '_';
  }
  return job.substr(0, 64);
}

Config read_environment() {
  Config config;
  config.devices = static_cast<uint32_t>(read_number("SOFTVERBS_DEVICES", 1, 1, kMaxDevices));
  config.has_device_count = getenv("SOFTVERBS_DEVICES") != nullptr;
  config.netdevs = read_text("SOFTVERBS_NETDEVS", "none");
  config.force_wire = read_number("SOFTVERBS_FORCE_WIRE", 0, 0, 1) != 0;
  constexpr uint64_t kDefaultPort = 23552, kLastPort = 64511;  // one port for each slot
  config.port = static_cast<uint32_t>(read_number("SOFTVERBS_PORT", kDefaultPort, 1024, kLastPort));
  config.wire_threads = static_cast<uint32_t>(read_number("SOFTVERBS_WIRE_THREADS", 0, 0, 16));
  config.streams = static_cast<uint32_t>(read_number("SOFTVERBS_STREAMS", 4, 1, 16));
  config.directory = read_text("SOFTVERBS_DIR", "");
  config.job = read_job();
  config.key_file = read_text("SOFTVERBS_KEY_FILE", read_text("VERBENA_JOB_KEY_FILE", "").c_str());
  config.encryption = read_number("VERBENA_ENCRYPTION", 0, 0, 1) != 0;
  config.insecure = read_number("SOFTVERBS_INSECURE", 0, 0, 1) != 0;
  config.ptracer = read_number("SOFTVERBS_PTRACER", 1, 0, 1) != 0;
  config.inline_copy_bytes =
      read_number("SOFTVERBS_INLINE_COPY", config.inline_copy_bytes, 0, uint64_t{1} << 40);
  // With few CPUs a polling thread probably keeps its peer from running.
  const uint64_t few_cpus_spins = 32, many_cpus_spins = 1000;
  const bool few_cpus = sysconf(_SC_NPROCESSORS_ONLN) < 8;
  config.spin_polls = static_cast<uint32_t>(
      read_number("SOFTVERBS_SPIN_POLLS", few_cpus ? few_cpus_spins : many_cpus_spins, 0, UINT32_MAX));
  config.worker_spin_ns = 1000 * read_number("SOFTVERBS_WORKER_SPIN_US", few_cpus ? 0 : 100, 0, 1'000'000);
  config.ordered_lines = read_number("SOFTVERBS_LL128", 0, 0, 1) != 0;
  config.gpu = read_number("SOFTVERBS_GPU", 1, 0, 1) != 0;
  config.gpu_batches = read_number("SOFTVERBS_GPU_BATCH", 1, 0, 1) != 0;
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
