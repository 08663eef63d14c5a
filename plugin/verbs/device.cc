#include "verbs/device.h"

#include <cstring>

#include "base/clock.h"
#include "base/log.h"
#include "base/parameters.h"
#include "verbs/address_handles.h"
#include "verbs/address_reader.h"
#include "verbs/async_events.h"
#include "verbs/library.h"
#include "verbs/mlx5.h"
#include "verbs/queues.h"
#include "verbs/region_cache.h"
#include "verbs/self_test.h"

namespace verbena::verbs {

namespace {

// Much longer than an answer takes. A slow device, or a slow host, only loses this time.
constexpr int64_t kPatienceNs = 100 * base::kNsPerMs;

}  // namespace

Device::Device()
    : regions_(std::make_unique<RegionCache>(*this)),
      address_handles_(std::make_unique<AddressHandles>(*this)) {}

// Also called for a device that DeviceOpener could not complete.
Device::~Device() {
  events_.reset();  // first, so that no thread reads the context's events any more
  if (domain_ != nullptr) {
    const int error = library_->dealloc_pd(domain_);
    if (error != 0) {
      base::log_warn(
          "device %s:%d: the protection domain cannot be freed, because it is still in use (errno %d)",
          name_.c_str(), port_number_, error);
    }
  }
  if (context_ != nullptr) library_->close_device(context_);
}

LocalAddress Device::local_address() const {
  const std::lock_guard lock(address_mutex_);
  return address_;
}

std::string Device::explain_wait() const {
  if (library_->explain_wait == nullptr) return {};
  std::string text(1024, '\0');
  text.resize(std::min(library_->explain_wait(text.data(), text.size()), text.size() - 1));
  return text;
}

bool Device::tells_carried_out() {
  // Softverbs supports this without a test; the fault plans of softverbs count every request, so a test would
  // change them. A device that cannot reach itself is not tested, because the test would wait for its address
  // again.
  std::call_once(is_carried_out_tried_, [this] {
    tells_carried_out_ = is_softverbs_ || (abilities().reaches_itself && verbs::tells_carried_out(*this));
  });
  return tells_carried_out_;
}

Abilities Device::untested_abilities() const {
  return {.empty_receives = takes_empty_receives(), .fetch_add = offers_atomics_};
}

const Abilities& Device::abilities() {
  std::call_once(is_tested_, [this] {
    // Softverbs has its own tests, and its fault plans count every request.
    if (is_softverbs_ || !base::parameters().self_test) {
      abilities_ = std::make_unique<const Abilities>(untested_abilities());
      return;
    }
    const bool has_datagrams = base::parameters().transport == base::Transport::kDatagram;
    const SelfTestResult result =
        test_device(*this, {.patience_ns = kPatienceNs, .datagrams = has_datagrams});
    abilities_ = std::make_unique<const Abilities>(judge(result, untested_abilities()));
    supports_atomics_.store(abilities_->fetch_add, std::memory_order_relaxed);
    if (!abilities_->unusable.empty()) return;  // refresh_address() logs the reason
    if (!abilities_->advice.empty()) {
      base::log_warn("device %s:%d: self-test: %s", name_.c_str(), port_number_, abilities_->advice.c_str());
    } else {
      base::log_info("device %s:%d: self-test: passed (%.1f ms)", name_.c_str(), port_number_,
                     static_cast<double>(result.took_ns) / base::kNsPerMs);
    }
  });
  return *abilities_;
}

LocalAddress Device::refresh_address() {
  const bool has_changed =
      events_->take_address_change();  // before reading, so that a later change is noticed
  ibv_port_attr port{};
  LocalAddress result = local_address();
  std::string problem;
  if (has_failed()) {
    problem = "the device has failed. Reset the device and restart the process";
  } else if (const int error = library_->read_port(context_, static_cast<uint8_t>(port_number_), &port);
             error != 0) {
    problem = "the port cannot be queried (errno " + std::to_string(error) + ")";
  } else if (port.state != IBV_PORT_ACTIVE) {
    problem = "the port is down";
  } else if (!has_changed && result.port.link_layer != 0 && address_reader_->is_current(result)) {
    result.port.mtu = static_cast<uint8_t>(port.active_mtu);
    result.port.lid = port.lid;
  } else if (auto read = address_reader_->read(port, &problem)) {
    result = *read;
  }
  store_address(result);
  if (problem.empty() && !abilities().unusable.empty()) problem = "self-test: " + abilities().unusable;
  if (problem.empty()) return result;
  base::log_warn("device %s:%d is not used for new connections: %s", name_.c_str(), port_number_,
                 problem.c_str());
  result.port.link_layer = 0;
  store_address(result);
  return result;
}

void Device::store_address(const LocalAddress& result) {
  const std::lock_guard lock(address_mutex_);
  if (std::memcmp(address_.port.gid, result.port.gid, kGidBytes) != 0) {
    base::log_info("device %s:%d: the port's address changed to %s (the old address was %s)", name_.c_str(),
                   port_number_, format_gid(result.port.gid).c_str(), format_gid(address_.port.gid).c_str());
  }
  address_ = result;
}

base::Outcome Device::confirm_address(const LocalAddress& known) const {
  if (known.port.link_layer == 0 || address_reader_->is_current(known) || has_failed()) return {};
  return base::fail(
      base::Status::kSystem,
      "device %s:%d: the port's GID table changed while a connection was set up (%s at index %d is gone)",
      name_.c_str(), port_number_, format_gid(known.port.gid).c_str(), known.gid_index);
}

bool Device::has_gid(int index, const uint8_t* gid) const {
  return address_reader_->holds(index, gid);
}

bool Device::is_healthy() const {
  return events_->is_healthy();
}

bool Device::has_failed() const {
  return events_->has_device_failed();
}

bool Device::may_replace_pairs() {
  return is_healthy() && abilities().empty_writes;
}

}  // namespace verbena::verbs
