// What a device reports outside of completions: ports going down and up, failures of the device or of a queue
// pair. One per Device; the process's watcher thread reads.
#pragma once

#include <atomic>

#include "verbs/device.h"

struct ibv_async_event;

namespace verbena::verbs {

class AsyncEvents {
 public:
  // If the events cannot be watched, that is logged, and the device counts as healthy.
  explicit AsyncEvents(const Device& device);
  ~AsyncEvents();
  AsyncEvents(const AsyncEvents&) = delete;
  AsyncEvents& operator=(const AsyncEvents&) = delete;

  // Relaxed: the flags are hints, no data is published through them.
  bool is_healthy() const {
    return is_port_up_.load(std::memory_order_relaxed) && !has_device_failed_.load(std::memory_order_relaxed);
  }

 private:
  void drain();
  void handle(const ibv_async_event& event);
  void handle_port_event(const ibv_async_event& event);

  const Device& device_;
  std::atomic<bool> is_port_up_{true};
  std::atomic<bool> has_device_failed_{false};
};

}  // namespace verbena::verbs
