// Carries a queue's messages to one reader on another host. A thread in the writer's process reads the ring
// like any other reader and sends each part over the link. It releases a slot when the remote reader has
// released the part, so a slow remote reader blocks the writer, and is named in errors, like a slow local
// reader. The idle thread sleeps on the ring's futex.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <thread>

#include "base/clock.h"
#include "base/status.h"
#include "bootstrap/frame_link.h"
#include "device/message_queue/peer_watch.h"
#include "device/message_queue/ring_memory.h"

namespace verbena::message_queue {

class RemoteFeed {
 public:
  // The thread calls `on_end` if the reader has gone without leaving the queue.
  RemoteFeed(RingMemory memory, uint32_t reader, bootstrap::FrameLink link, std::function<void()> on_end);
  // Ends the thread. If the queue has ended, the thread first sends the remaining messages, for at most
  // kLingerMs.
  ~RemoteFeed();

  base::Outcome start();
  // Returns why the reader has gone. Valid after on_end.
  const std::string& problem() const { return problem_; }

 private:
  void run();
  void send_next();
  void hear();
  void flush();
  void notify();
  bool must_stop() const { return stop_at_ns_.load(std::memory_order_acquire) != kNoDeadline; }
  bool is_overdue() const { return base::monotonic_ns() >= stop_at_ns_.load(std::memory_order_acquire); }

  RingReader<RingMemory> ring_;
  bootstrap::FrameLink link_;
  std::function<void()> on_end_;
  PeerWatch watch_;
  std::thread thread_;
  std::atomic<uint32_t> interrupt_{0};
  std::atomic<int64_t> stop_at_ns_{kNoDeadline};
  uint64_t given_back_ = 0;
  bool has_left_ = false, is_broken_ = false;
  std::string problem_;
};

}  // namespace verbena::message_queue
