#include "transport/support/host.h"

#include <stdlib.h>
#include <unistd.h>

#include <numeric>

#include "base/job_key.h"
#include "base/parameters.h"

namespace verbena::transport {

namespace {

constexpr size_t kPageBytes = 4096;
constexpr char kDevices[] = "4";

// Settings for softverbs. To run the tests over other devices, set them in the environment.
const Settings kDeviceDefaults = {
    {"VERBENA_IBVERBS_LIB", "softverbs"},
    {"VERBENA_ACK_TIMEOUT", "14"},
    {"VERBENA_RETRY_COUNT", "3"},
    {"VERBENA_PEER_GRACE_MS", "200"},
};

// Small and quick: the same limits, met sooner.
const Settings kDefaults = {
    {"VERBENA_SOCKET_IFNAME", "lo"},    {"VERBENA_BOUNCE_BYTES", "8m"},     {"VERBENA_WINDOW_PAGES", ""},
    {"VERBENA_PAGE_BYTES", ""},         {"VERBENA_UNPACK_THRESHOLD", ""},   {"VERBENA_MIN_STRIPE_BYTES", ""},
    {"VERBENA_QPS_PER_CONNECTION", ""}, {"VERBENA_CONNECT_TIMEOUT_MS", ""}, {"VERBENA_JOB_KEY_FILE", ""},
    {"VERBENA_ENCRYPTION", ""},
};

// The processes of a test are a softverbs job of their own. Set before the first of them is forked.
[[maybe_unused]] const int kJob = setenv("SOFTVERBS_JOB", ("test-" + std::to_string(getpid())).c_str(), 1);

}  // namespace

void apply_settings(const Settings& settings) {
  for (const auto& [name, value] : kDeviceDefaults) setenv(name.c_str(), value.c_str(), 0);
  for (const auto& [name, value] : kDefaults) setenv(name.c_str(), value.c_str(), 1);
  for (const auto& [name, value] : settings) setenv(name.c_str(), value.c_str(), 1);
  if (!base::load_parameters()) throw std::runtime_error("a setting of the test is wrong");
  if (!base::load_job_key()) throw std::runtime_error("the test's job key is wrong");
}

Host::Host(const Settings& settings) {
  setenv("SOFTVERBS_DEVICES", kDevices, 1);  // read once in a process
  apply_settings(settings);
  registry_ = take(NicRegistry::discover(), "devices");
}

const Nic& Host::nic(int rails, int first) {
  std::vector<int> members(static_cast<size_t>(rails));
  std::iota(members.begin(), members.end(), first);
  return *registry_->find(take(registry_->add_virtual(members), "a device"));
}

Memory::Memory(const Nic& nic, size_t length_bytes)
    : storage_(std::make_unique<std::byte[]>(length_bytes + kPageBytes)),
      start_(storage_.get() + (kPageBytes - reinterpret_cast<uintptr_t>(storage_.get()) % kPageBytes)),
      length_bytes_(length_bytes),
      registration_(take(register_on_rails(nic, start_, length_bytes, false, -1, 0), "a registration")) {}

}  // namespace verbena::transport
