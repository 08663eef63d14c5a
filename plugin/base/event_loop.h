// One thread of the process that watches file descriptors: peers' control sockets and the verbs' async
// events. It starts with the first descriptor and is joined when the last one goes, at the latest when the
// library unloads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>

#include "base/status.h"

namespace verbena::base {

enum class Interest : uint8_t {
  kReadable,  // whenever there is something to read; the callback must read it, or it is called again at once
  kNewData,   // once for each arrival and once on an error or hang-up; the callback must read until EAGAIN
  kPeerClosed,  // once, when the peer of a socket closes or resets; unread data does not matter
};

class EventLoop {
 public:
  // Runs on the watcher thread with no lock held. It must be short and must call neither watch nor unwatch:
  // it sets a flag, or drains an event descriptor.
  using Callback = void (*)(void* context);

  static EventLoop& instance();

  EventLoop();
  ~EventLoop();
  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;

  // From any thread. The descriptor stays the caller's; it must be unwatched before it is closed.
  Outcome watch(int fd, Interest interest, Callback callback, void* context);
  // When this returns, the callback is not running and never runs again. Harmless for a descriptor not
  // watched.
  void unwatch(int fd);

  size_t count_watched() const;

 private:
  class Watcher;

  // Serialises watch and unwatch, the start and the join of the thread included; never taken by the thread
  // itself.
  mutable std::mutex lifecycle_mutex_;
  std::unique_ptr<Watcher> watcher_;
};

}  // namespace verbena::base
