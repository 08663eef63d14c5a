#include "nccl/tuning.h"

#include <unistd.h>

#include <mutex>

#include "base/lasting.h"
#include "base/log.h"
#include "base/parameters.h"
#include "nccl/process.h"
#include "nccl/unpack_offer.h"
#include "tuner/calibration_file.h"
#include "verbs/library.h"

namespace verbena::nccl {
namespace {

struct Held {
  std::mutex mutex;  // guards what follows
  std::shared_ptr<const tuner::Calibration> tuning;

  Held() { Process::get(); }  // created before this object, so that it is destroyed after it
  bool is_idle() { return Process::get().is_idle(); }
};

Held& held() {
  static const base::Lasting<Held> lasting;
  return *lasting;
}

void keep(std::shared_ptr<const tuner::Calibration> tuning) {
  const std::lock_guard lock(held().mutex);
  held().tuning = std::move(tuning);
}

void set_default(const char* name, const std::optional<int64_t>& value, const std::string& path) {
  if (value) base::set_parameter_default(name, std::to_string(*value), path);
}

// NCCL reads these variables when it creates a communicator's channels, after it has initialised its network.
void set_nccl_default(const char* name, const std::optional<int64_t>& value, const std::string& path) {
  if (!value || !base::set_environment_default(name, std::to_string(*value).c_str())) return;
  base::log_info("tuning file: the plugin set %s=%lld, as %s requests", name, static_cast<long long>(*value),
                 path.c_str());
}

// From NCCL 2.28 on, NCCL reads this variable before it initialises the communicator's network, so it must be
// set before the process starts.
void set_peer_channels(const std::optional<int64_t>& value, int abi_version, const std::string& path) {
  constexpr const char* kName = "NCCL_NCHANNELS_PER_NET_PEER";
  if (abi_version < kFirstTableWithAttributes) return set_nccl_default(kName, value, path);
  if (!value || !base::set_environment_default(kName, std::to_string(*value).c_str())) return;
  base::log_info(
      "tuning file: cannot set %s=%lld, because NCCL has already read the variable. Export the variable "
      "before the job starts (%s)",
      kName, static_cast<long long>(*value), path.c_str());
}

// The tuning file for softverbs is installed beside softverbs. All ranks of a job find the same file, because
// softverbs connects to softverbs only.
std::string find_own_file(const transport::NicRegistry& nics) {
  for (int index = 0; index < nics.size(); ++index) {
    for (const verbs::Device* device : nics.find(index)->rails) {
      if (!device->is_softverbs()) return {};
    }
  }
  const transport::Nic* first = nics.find(0);
  if (first == nullptr) return {};
  const std::string library = first->rails[0]->library().path();
  const size_t slash = library.rfind('/');
  if (slash == std::string::npos) return {};
  const std::string path = library.substr(0, slash) + "/tuning.json";
  return access(path.c_str(), R_OK) == 0 ? path : std::string();
}

std::string find_file(const transport::NicRegistry& nics) {
  const std::string& setting = base::parameters().tuning_file;
  if (setting == "none") return {};
  return setting.empty() || setting == "auto" ? find_own_file(nics) : setting;
}

}  // namespace

void load_tuning(const transport::NicRegistry& nics, int abi_version) {
  keep(nullptr);
  const std::string path = find_file(nics);
  if (path.empty()) return;
  tuner::ParsedCalibration read = tuner::read_calibration_file(path);
  if (!read.calibration) {
    base::log_warn("tuning file: the file %s is not used: %s", path.c_str(), read.problem.c_str());
    return;
  }
  const tuner::TransportEntries& transport = read.calibration->transport;
  set_default("VERBENA_UNPACK_THRESHOLD", transport.unpack_threshold_bytes, path);
  set_default("VERBENA_MIN_STRIPE_BYTES", transport.min_stripe_bytes, path);
  set_nccl_default("NCCL_MIN_NCHANNELS", transport.min_channels, path);
  set_peer_channels(transport.net_peer_channels, abi_version, path);
  set_nccl_default("NCCL_P2P_NET_CHUNKSIZE", transport.net_chunk_bytes, path);
  keep(std::make_shared<const tuner::Calibration>(std::move(*read.calibration)));
}

std::shared_ptr<const tuner::Calibration> tuning() {
  const std::lock_guard lock(held().mutex);
  return held().tuning;
}

tuner::Offer describe_offer() {
  const int abi_version = Process::get().oldest_abi_version();
  return {.is_in_use = abi_version > 0,
          .unpack = offers_unpack(),
          .tells_pat = abi_version >= kFirstTableWithAttributes};
}

}  // namespace verbena::nccl
