// A thread that watches file descriptors: the control sockets of peers and the async events of verbs. It
// starts with the first descriptor and is joined after the last one, at the latest when the library unloads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>

#include "base/own_process.h"
#include "base/status.h"

namespace verbena::base {

enum class Interest : uint8_t {
  // Called while there is data to read; the callback must read it, or it is called again at once.
  kReadable,
  // Called once for each arrival and once on an error or hang-up; the callback must read until EAGAIN.
  kNewData,
  kDataOrRoom,  // like kNewData, and also once when sending becomes possible again
  kPeerClosed,  // called once, when the peer of a socket closes or resets, even if data is unread
};

class EventLoop {
 public:
  // Runs on the watcher thread with no lock held. It must be short and must call neither watch nor unwatch:
  // it sets a flag, or drains an event descriptor.
  using Callback = void (*)(void* context);

  // The process's event loop. A forked child has a separate one, and cannot unwatch its parent's descriptors.
  static EventLoop& instance();

  EventLoop();
  ~EventLoop();
  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;

  // Watches a descriptor. Any thread may call. The caller keeps the descriptor and must call unwatch() before
  // closing it.
  Outcome watch(int fd, Interest interest, Callback callback, void* context);
  // When this returns, the callback is not running and never runs again. Does nothing for a descriptor that
  // is not watched.
  void unwatch(int fd);

  size_t count_watched() const;

 private:
  class Watcher;

  // Serialises watch and unwatch, with the start and the join of the thread. The thread itself never takes
  // it.
  const OwnProcess process_;
  mutable std::mutex lifecycle_mutex_;
  std::unique_ptr<Watcher> watcher_;
};

}  // namespace verbena::base
