#include "verbs/async_events.h"

#include <fcntl.h>

#include <cerrno>

#include "base/event_loop.h"
#include "base/log.h"
#include "verbs/library.h"

namespace verbena::verbs {
namespace {

const char* explain_queue_pair_event(ibv_event_type type) {
  switch (type) {
    case IBV_EVENT_QP_FATAL:
      return "failed: the device had an error in this queue pair; see dmesg";
    case IBV_EVENT_QP_REQ_ERR:
      return "failed: the peer sent an invalid request; the log line of the connection names the peer";
    case IBV_EVENT_QP_ACCESS_ERR:
      return "failed: the peer accessed memory without permission; the log line of the connection names the "
             "peer";
    case IBV_EVENT_PATH_MIG_ERR:
      return "could not migrate its path";
    default:
      return nullptr;  // COMM_EST, SQ_DRAINED: not errors
  }
}

const char* explain_address_event(ibv_event_type type) {
  switch (type) {
    case IBV_EVENT_LID_CHANGE:
      return "the port's LID changed, so existing connections may fail";
    case IBV_EVENT_GID_CHANGE:
      return "the port's GID table changed. Connections whose GID was removed fail, and new connections use "
             "the new table";
    case IBV_EVENT_PKEY_CHANGE:
      return "the port's partition keys changed. Connections whose key was removed fail";
    default:
      return nullptr;  // concerns the subnet manager only
  }
}

}  // namespace

AsyncEvents::AsyncEvents(const Device& device) : device_(device) {
  const int fd = device.context()->async_fd;
  const int flags = fcntl(fd, F_GETFL);
  if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0) {
    base::log_warn(
        "device %s:%d: cannot watch the device's events (errno %d). The plugin therefore notices that a port "
        "is down only when a request fails",
        device.name().c_str(), device.port_number(), errno);
    return;
  }
  is_watched_ = true;
  const auto callback = [](void* context) { static_cast<AsyncEvents*>(context)->drain(); };
  // Edge triggered, because the descriptor of an unplugged device reports an error for ever.
  (void)base::EventLoop::instance().watch(fd, base::Interest::kNewData, callback, this).status();
}

AsyncEvents::~AsyncEvents() {
  base::EventLoop::instance().unwatch(device_.context()->async_fd);
}

void AsyncEvents::drain() {
  const Library& library = device_.library();
  ibv_async_event event{};
  for (;;) {
    if (library.get_async_event(device_.context(), &event) == 0) {
      handle(event);
      library.ack_async_event(&event);
      continue;
    }
    const int error = errno;
    if (error == EINTR) continue;
    if (error == EAGAIN || has_device_failed_.exchange(true, std::memory_order_relaxed)) return;
    base::log_warn("device %s:%d is gone, because its events can no longer be read (errno %d)",
                   device_.name().c_str(), device_.port_number(), error);
    return;
  }
}

void AsyncEvents::handle(const ibv_async_event& event) {
  const char* name = device_.name().c_str();
  const int port_number = device_.port_number();
  if (event.event_type == IBV_EVENT_DEVICE_FATAL) {
    has_device_failed_.store(true, std::memory_order_relaxed);
    base::log_warn("device %s:%d has failed and must be reset; see dmesg", name, port_number);
  } else if (event.event_type == IBV_EVENT_CQ_ERR) {
    base::log_warn(
        "device %s:%d: a completion queue failed because the queue overran. The log lines of the device's "
        "connections name the peers",
        name, port_number);
    note(event.element.cq);
  } else if (event.event_type == IBV_EVENT_SRQ_ERR) {
    base::log_warn("device %s:%d: a shared receive queue failed and receives nothing more. See dmesg", name,
                   port_number);
  } else if (event.event_type == IBV_EVENT_QP_LAST_WQE_REACHED) {
    note(event.element.qp);
  } else if (const char* what = explain_queue_pair_event(event.event_type); what != nullptr) {
    // The queue pair still exists, because destroying a queue pair waits until its events are acknowledged.
    const auto log = is_quiet_.load(std::memory_order_relaxed) ? base::log_info : base::log_warn;
    log("device %s:%d: queue pair %u %s", name, port_number, event.element.qp->qp_num, what);
  } else {
    handle_port_event(event);
  }
}

void AsyncEvents::watch(const void* queue, std::atomic<bool>* is_set) {
  const std::lock_guard lock(watched_mutex_);
  watched_[queue] = is_set;
}

void AsyncEvents::forget(const void* queue) {
  const std::lock_guard lock(watched_mutex_);
  watched_.erase(queue);
}

void AsyncEvents::note(const void* queue) {
  const std::lock_guard lock(watched_mutex_);
  const auto found = watched_.find(queue);
  if (found != watched_.end()) found->second->store(true, std::memory_order_release);
}

// Every context sees the events of all ports of its device.
void AsyncEvents::handle_port_event(const ibv_async_event& event) {
  const char* name = device_.name().c_str();
  const int port_number = device_.port_number();
  if (event.element.port_num == port_number) {
    has_address_changed_.store(true, std::memory_order_release);
    port_events_.fetch_add(1, std::memory_order_release);
  }
  if (event.event_type == IBV_EVENT_PORT_ERR && event.element.port_num == port_number) {
    is_port_up_.store(false, std::memory_order_relaxed);
    base::log_warn("device %s:%d: port is down: check the cable and the switch", name, port_number);
  } else if (event.event_type == IBV_EVENT_PORT_ACTIVE && event.element.port_num == port_number) {
    is_port_up_.store(true, std::memory_order_relaxed);
    base::log_warn("device %s:%d: port is up again", name, port_number);
  } else if (const char* what = explain_address_event(event.event_type);
             what != nullptr && event.element.port_num == port_number) {
    base::log_warn("device %s:%d: %s", name, port_number, what);
  }
}

}  // namespace verbena::verbs
