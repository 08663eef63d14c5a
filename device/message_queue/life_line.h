// Tells at once that a process has died: each end of a ring holds a word in it, which the kernel marks as
// soon as the process begins to end, by the list of robust futexes of the thread here. A connection closes,
// and a pidfd becomes readable, only when the process's memory has been taken apart, which takes a second for
// some GiB.
//
// Needs futex_waitv (Linux 5.16); where it is refused, the connection has to do.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#include "base/status.h"

namespace verbena::message_queue {

// In shared memory, zero at first. The kernel finds `holder` by its distance from `next`, which only its
// holder uses.
struct LifeWord {
  void* next;
  std::atomic<uint32_t>
      holder;  // the holder's thread; 0: none, or it has gone in order; or the kernel's mark
};

class LifeLine {
 public:
  LifeLine() = default;
  ~LifeLine() { stop(); }
  LifeLine(const LifeLine&) = delete;
  LifeLine& operator=(const LifeLine&) = delete;

  // Holds `own` from now on, and once watch() is called looks after `peers`, of which the first 127 count.
  // `notify` runs on the thread here, is short, and runs whenever a peer's process has died.
  base::Outcome start(std::vector<LifeWord*> own, std::function<void()> notify);
  // Once the peers hold theirs.
  void watch(std::vector<LifeWord*> peers);
  // In order: the peers are not told that this process has died.
  void stop();

  // The process that held this word has died.
  static bool has_died(const LifeWord& word);

 private:
  void run();
  bool wait(const std::vector<LifeWord*>& living);

  std::vector<LifeWord*> own_, peers_;
  std::function<void()> notify_;
  std::thread thread_;
  std::atomic<uint32_t> step_{0};
};

}  // namespace verbena::message_queue
