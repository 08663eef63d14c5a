// Detects at once that a peer process has died. Each end of a ring holds a word in shared memory as a robust
// futex; Linux marks the word as soon as its holder's thread ends. A closed connection or a pidfd would
// report the death later, after the process's memory was freed, which takes a second for several GiB.
//
// This needs futex_waitv (Linux 5.16). On older kernels, only the closed connection reports a dead peer.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#include "base/status.h"

namespace verbena::message_queue {

// A word in shared memory, initially zero. Linux finds `holder` by its fixed distance from `next`, which only
// the holder's process uses.
struct LifeWord {
  void* next;
  std::atomic<uint32_t>
      holder;  // thread id of the holder; 0 if there is no holder, or if it has left in order; or Linux's
               // mark of a dead holder
};

class LifeLine {
 public:
  LifeLine() = default;
  ~LifeLine() { stop(); }
  LifeLine(const LifeLine&) = delete;
  LifeLine& operator=(const LifeLine&) = delete;

  // Starts a thread that holds the words `own`. After watch(), the thread calls `notify`, which must be
  // short, whenever a peer's process has died.
  base::Outcome start(std::vector<LifeWord*> own, std::function<void()> notify);
  // Begins to watch the peers' words, which the peers must hold already. Watches at most 127 words.
  void watch(std::vector<LifeWord*> peers);
  // Releases the words in order, so that the peers do not take this process for dead.
  void stop();

  // Returns whether the process that held this word has died.
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
