// Which of the endpoint's regions a place in the heap lies in. Any thread changes the table; one, the reader,
// looks up without a lock, in the copy that it took up last.
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
  // Returns when the reader has let go of what it took up before.
  void remove(uint64_t heap_offset);

  // The reader's: take_up(), look-ups, let_go(), again and again.
  void take_up();
  // Null if the range is not inside of one window.
  const Window* find(uint64_t heap_offset, uint64_t bytes) const;
  void let_go() { held_.store(nullptr, std::memory_order_release); }

 private:
  using Windows = std::vector<Window>;  // by offset

  void publish(Windows windows);

  std::mutex mutex_;                                // of those who change it
  std::vector<std::unique_ptr<Windows>> versions_;  // guarded; the last one is current
  std::atomic<const Windows*> current_;
  std::atomic<const Windows*> held_{nullptr};  // by the reader
};

}  // namespace verbena::symm
