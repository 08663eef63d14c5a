#include "verbs/device.h"

#include "base/log.h"
#include "verbs/async_events.h"
#include "verbs/library.h"

namespace verbena::verbs {

Device::Device() = default;

// Also runs for a device that DeviceOpener could not finish.
Device::~Device() {
  events_.reset();  // nothing reads the context's events any more
  if (domain_ != nullptr) {
    const int error = library_->dealloc_pd(domain_);
    if (error != 0) {
      base::log_warn("device %s:%d: protection domain is still in use (errno %d)", name_.c_str(),
                     port_number_, error);
    }
  }
  if (context_ != nullptr) library_->close_device(context_);
}

bool Device::is_healthy() const {
  return events_->is_healthy();
}

}  // namespace verbena::verbs
