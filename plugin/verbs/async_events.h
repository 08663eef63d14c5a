// What a device reports outside of completions. One per Device.
#pragma once

#include <atomic>

#include "verbs/device.h"

namespace verbena::verbs {

class AsyncEvents {
 public:
  explicit AsyncEvents(const Device& device) : device_(device) {}

  // Relaxed: the flags are hints, no data is published through them.
  bool is_healthy() const {
    return is_port_up_.load(std::memory_order_relaxed) && !has_device_failed_.load(std::memory_order_relaxed);
  }

 private:
  const Device& device_;
  std::atomic<bool> is_port_up_{true};
  std::atomic<bool> has_device_failed_{false};
};

}  // namespace verbena::verbs
