#include "device/message_queue/peer_watch.h"

#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <utility>

#include "base/event_loop.h"

namespace verbena::message_queue {

using base::EventLoop;
using base::Interest;

ProcessName name_own_process() {
  struct stat status {};
  if (stat("/proc/self/ns/pid", &status) != 0) return {};
  return {.space = status.st_ino, .pid = getpid()};
}

base::Outcome PeerWatch::start(int connection, bool hears_data, const ProcessName& process,
                               std::function<void()> notify) {
  notify_ = std::move(notify);
  connection_ = connection;
  hears_data_ = hears_data;
  if (connection < 0) {  // the peer may have finished and exited before this call
    has_closed_.store(true, std::memory_order_release);
    notify_();
    return {};
  }
  const auto on_connection = [](void* context) {
    auto& watch = *static_cast<PeerWatch*>(context);
    if (!watch.hears_data_) watch.has_closed_.store(true, std::memory_order_release);
    watch.notify_();
  };
  if (auto watched = EventLoop::instance().watch(
          connection, hears_data ? Interest::kNewData : Interest::kPeerClosed, on_connection, this);
      !watched) {
    connection_ = -1;
    return watched;
  }
  // The connection is still open, so the process id cannot have been reused. Without pidfd_open (before Linux
  // 5.3), only the connection reports the peer's exit.
  if (process.space == 0 || process.space != name_own_process().space) return {};
  process_.reset(static_cast<int>(syscall(SYS_pidfd_open, static_cast<pid_t>(process.pid), 0)));
  if (!process_) return {};
  const auto on_end = [](void* context) {
    auto& watch = *static_cast<PeerWatch*>(context);
    watch.has_ended_.store(true, std::memory_order_release);
    watch.notify_();
  };
  const base::Outcome watched = EventLoop::instance().watch(process_.get(), Interest::kNewData, on_end, this);
  is_process_watched_ = static_cast<bool>(watched);
  if (!watched) stop();
  return watched;
}

void PeerWatch::stop() {
  if (is_process_watched_) EventLoop::instance().unwatch(process_.get());
  if (connection_ >= 0) EventLoop::instance().unwatch(connection_);
  is_process_watched_ = false;
  connection_ = -1;
  process_.reset();
}

}  // namespace verbena::message_queue
