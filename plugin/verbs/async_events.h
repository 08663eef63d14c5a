// What a device reports besides completions: ports that go down and up, failures of the device or of a queue
// pair. One per Device; the process's event thread reads the events.
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
  // If the events cannot be watched, a line says so, and the device counts as healthy.
  explicit AsyncEvents(const Device& device);
  ~AsyncEvents();
  AsyncEvents(const AsyncEvents&) = delete;
  AsyncEvents& operator=(const AsyncEvents&) = delete;

  // Relaxed: the flags are hints, no data is published through them.
  bool is_healthy() const {
    return is_port_up_.load(std::memory_order_relaxed) && !has_device_failed_.load(std::memory_order_relaxed);
  }

  // Whether addresses of the port may have changed since the last call.
  bool take_address_change() { return has_address_changed_.exchange(false, std::memory_order_acq_rel); }

  // How many changes of the port and its addresses there were.
  uint32_t count_port_events() const { return port_events_.load(std::memory_order_acquire); }

  // Sets `*is_drained` (release) once the queue pair is in the error state and takes no more entries of its
  // shared receive queue. Ends with forget_pair.
  void watch_pair(uint32_t number, std::atomic<bool>* is_drained);
  void forget_pair(uint32_t number);

 private:
  void drain();
  void handle(const ibv_async_event& event);
  void handle_port_event(const ibv_async_event& event);
  void note_drained(uint32_t number);

  const Device& device_;
  std::atomic<bool> is_port_up_{true};
  std::atomic<bool> has_device_failed_{false};
  std::atomic<bool> has_address_changed_{false};
  std::atomic<uint32_t> port_events_{0};
  std::mutex pairs_mutex_;                                  // guards pairs_
  std::unordered_map<uint32_t, std::atomic<bool>*> pairs_;  // by queue pair number
};

}  // namespace verbena::verbs
