// A descriptor that another thread makes readable, to wake a poll().
#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

#include "base/file_descriptor.h"
#include "base/log.h"
#include "base/status.h"

namespace verbena::base {

class WakeEvent {
 public:
  // `what` names the event's owner in errors.
  static Result<WakeEvent> create(const char* what) {
    WakeEvent event;
    event.event_.reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (event.event_) return event;
    return fail_errno(Status::kSystem, errno, "%s: cannot create an event descriptor", what);
  }

  int fd() const { return event_.get(); }
  // Makes the descriptor readable until clear(). Any thread may call.
  void ring() const {
    const uint64_t one = 1;
    while (write(event_.get(), &one, sizeof(one)) < 0 && errno == EINTR) continue;
  }
  void clear() const {
    uint64_t count = 0;
    while (read(event_.get(), &count, sizeof(count)) < 0 && errno == EINTR) continue;
  }

 private:
  FileDescriptor event_;
};

}  // namespace verbena::base
