// Notices on the process's watcher thread (base/event_loop.h) that a peer has gone: its connection closed,
// or, where its process can be seen, that ended. The second finds a peer whose forked child still holds the
// connection.
#pragma once

#include <atomic>
#include <functional>

#include "base/file_descriptor.h"
#include "base/status.h"
#include "device/message_queue/queue_messages.h"

namespace verbena::message_queue {

class PeerWatch {
 public:
  PeerWatch() = default;
  ~PeerWatch() { stop(); }
  PeerWatch(const PeerWatch&) = delete;
  PeerWatch& operator=(const PeerWatch&) = delete;

  // `notify` runs on the watcher thread, is short, and runs whenever there is something new on the connection
  // (`hears_data`) or the peer has gone. A connection of -1 is closed.
  base::Outcome start(int connection, bool hears_data, const ProcessName& process,
                      std::function<void()> notify);
  // Before the connection is closed.
  void stop();

  // The process has ended.
  bool has_ended() const { return has_ended_.load(std::memory_order_acquire); }
  // The connection closed, where its data is not heard.
  bool has_closed() const { return has_closed_.load(std::memory_order_acquire); }

 private:
  int connection_ = -1;
  base::FileDescriptor process_;
  bool hears_data_ = false, is_process_watched_ = false;
  std::atomic<bool> has_ended_{false}, has_closed_{false};
  std::function<void()> notify_;
};

}  // namespace verbena::message_queue
