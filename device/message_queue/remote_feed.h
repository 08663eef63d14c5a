// Carries a queue's messages to one reader of another host: a thread in the writer's process that reads the
// ring like any other reader and sends each part over the link. A slot is given back when that reader has
// given it back, so that a slow one holds back the writer, and is named, as if it shared the memory. Idle,
// the thread sleeps on the ring's futex.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <thread>

#include "base/clock.h"
#include "base/status.h"
#include "bootstrap/link.h"
#include "device/message_queue/peer_watch.h"
#include "device/message_queue/ring_memory.h"

namespace verbena::message_queue {

class RemoteFeed {
 public:
  // `on_end` runs on the thread when the reader has gone without leaving.
  RemoteFeed(RingMemory memory, uint32_t reader, bootstrap::Link link, std::function<void()> on_end);
  // Ends the thread: at once if the ring has not ended, else when all is sent, or kLingerMs have passed.
  ~RemoteFeed();

  base::Outcome start();
  // Valid once on_end has run.
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
  bootstrap::Link link_;
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
