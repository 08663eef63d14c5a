// Events that a device reports besides completions: ports that go down and up, and failures of the device or
// of a queue pair. Each Device has one such object. The process's event thread reads the events.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <unordered_map>

#include "verbs/device.h"

struct ibv_async_event;

namespace verbena::verbs {

class AsyncEvents {
 public:
  // If the events cannot be watched, logs this, and the device counts as healthy.
  explicit AsyncEvents(const Device& device);
  ~AsyncEvents();
  AsyncEvents(const AsyncEvents&) = delete;
  AsyncEvents& operator=(const AsyncEvents&) = delete;

  // Relaxed: the flags are hints, no data is published through them.
  bool is_healthy() const {
    return is_port_up_.load(std::memory_order_relaxed) && !has_device_failed_.load(std::memory_order_relaxed);
  }

  // Also reads events that the event thread has not read yet. For slow paths.
  bool has_device_failed() {
    if (is_watched_ && !has_device_failed_.load(std::memory_order_relaxed)) drain();
    return has_device_failed_.load(std::memory_order_relaxed);
  }

  // Returns whether addresses of the port may have changed since the last call.
  bool take_address_change() { return has_address_changed_.exchange(false, std::memory_order_acq_rel); }

  // Returns the number of changes of the port and its addresses.
  uint32_t count_port_events() const { return port_events_.load(std::memory_order_acquire); }

  // Sets `*is_set` (release) when the device reports an event of `queue`: see EventMark. forget() ends the
  // watch.
  void watch(const void* queue, std::atomic<bool>* is_set);
  void forget(const void* queue);

  // While set, failures of queue pairs are logged at kInfo.
  void set_quiet(bool quiet) { is_quiet_.store(quiet, std::memory_order_relaxed); }

 private:
  void drain();
  void handle(const ibv_async_event& event);
  void handle_port_event(const ibv_async_event& event);
  void note(const void* queue);

  const Device& device_;
  bool is_watched_ = false;  // reading an event does not block
  std::atomic<bool> is_port_up_{true};
  std::atomic<bool> has_device_failed_{false};
  std::atomic<bool> is_quiet_{false};
  std::atomic<bool> has_address_changed_{false};
  std::atomic<uint32_t> port_events_{0};
  std::mutex watched_mutex_;  // guards watched_
  std::unordered_map<const void*, std::atomic<bool>*> watched_;
};

}  // namespace verbena::verbs
