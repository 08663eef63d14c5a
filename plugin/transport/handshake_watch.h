// A handshake, or the wait for one, as far as others in the process have to do with it: how long it has
// lasted, in the words of a state report and of a stall.
#pragma once

#include <atomic>
#include <string>

#include "base/clock.h"
#include "transport/roster.h"
#include "transport/wait_monitor.h"

namespace verbena::transport {

class WatchedHandshake : public RosterMember {
 protected:
  WatchedHandshake();
  ~WatchedHandshake() = default;
  // By the constructor and the destructor of the whole: between them any thread may ask it.
  void join_roster() { Roster::instance().add(this); }
  void leave_roster();

  // Of the thread that polls.
  void restart_watch();
  void warn_if_stalled();
  // `<who>: <wait> for 3.1 s of at most 300.0 s`, a line.
  std::string describe(const std::string& who, const char* wait) const;

 private:
  // Everything of it may be looked at by any thread.
  bool tell(Telling& telling) final {
    telling = tell_from_outside();
    return true;
  }
  int64_t since_ns() const { return since_ns_.load(std::memory_order_relaxed); }

  std::atomic<int64_t> since_ns_;
  StallClock stall_;
};

}  // namespace verbena::transport
