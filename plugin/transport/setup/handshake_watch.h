// A handshake, or the wait for one, as far as others in the process have to do with it: how long it has
// lasted, in the words of a state report and of a stall.
#pragma once

#include <atomic>
#include <string>

#include "base/clock.h"
#include "protocol/wait_monitor.h"
#include "transport/service/registry.h"

namespace verbena::transport {

class WatchedHandshake : public RegistryMember {
 protected:
  WatchedHandshake();
  ~WatchedHandshake() = default;
  // By the constructor and the destructor of the whole: between them any thread may ask it.
  void register_self() { Registry::instance().add(this); }
  void unregister_self();

  // Of the thread that polls.
  void restart_watch();
  void warn_if_stalled();
  // `<who>: <wait> for 3.1 s of at most 300.0 s`, a line.
  std::string describe(const std::string& who, const char* wait) const;

 private:
  // Everything of it may be looked at by any thread.
  bool dump_state(StateDump& dump) final {
    dump = dump_from_outside();
    return true;
  }
  int64_t since_ns() const { return since_ns_.load(std::memory_order_relaxed); }

  std::atomic<int64_t> since_ns_;
  protocol::StallClock stall_;
};

}  // namespace verbena::transport
