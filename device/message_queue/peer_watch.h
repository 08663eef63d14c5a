// Detects that a peer has exited. The process's watcher thread (base/event_loop.h) notices that the peer's
// connection has closed or, if the peer's process is visible, that the process has ended. Watching the
// process also detects the exit of a peer whose forked child still holds the connection open.
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

  // Starts watching. The watcher thread calls `notify`, which must be short, when the peer has exited and, if
  // `hears_data`, when data arrives. A connection of -1 counts as closed.
  base::Outcome start(int connection, bool hears_data, const ProcessName& process,
                      std::function<void()> notify);
  // Stops watching. Call it before closing the connection.
  void stop();

  // Returns whether the peer's process has ended.
  bool has_ended() const { return has_ended_.load(std::memory_order_acquire); }
  // Returns whether the connection has closed. Valid only if `hears_data` is false.
  bool has_closed() const { return has_closed_.load(std::memory_order_acquire); }

 private:
  int connection_ = -1;
  base::FileDescriptor process_;
  bool hears_data_ = false, is_process_watched_ = false;
  std::atomic<bool> has_ended_{false}, has_closed_{false};
  std::function<void()> notify_;
};

}  // namespace verbena::message_queue
