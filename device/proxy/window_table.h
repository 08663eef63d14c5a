// Maps offsets in the heap to the endpoint's regions. Any thread may change the table. One thread, the
// reader, looks up without a lock, in the version of the table that it loaded last.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "base/status.h"

namespace verbena::symm {

struct Window {
  uint64_t heap_offset = 0, bytes = 0;
  uint32_t region = 0;
};

class WindowTable {
 public:
  WindowTable();

  base::Outcome add(const Window& window);
  // Removes a window. Returns when the reader has released every version that contains it.
  void remove(uint64_t heap_offset);

  // The reader repeats: take_up(), look-ups, let_go().
  void take_up();
  // Returns null if the range is not inside one window.
  const Window* find(uint64_t heap_offset, uint64_t bytes) const;
  void let_go() { held_.store(nullptr, std::memory_order_release); }

 private:
  using Windows = std::vector<Window>;  // sorted by offset

  void publish(Windows windows);

  std::mutex mutex_;                                // guards changes
  std::vector<std::unique_ptr<Windows>> versions_;  // guarded; the last version is current
  std::atomic<const Windows*> current_;
  std::atomic<const Windows*> held_{nullptr};  // the version that the reader uses
};

}  // namespace verbena::symm
