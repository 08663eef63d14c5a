// The watch of a handshake, or of the wait for one: describes it in the state dump, and warns if it stalls.
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
  // The constructor and the destructor of the derived class call these two functions. Between the calls any
  // thread may ask for the state.
  void register_self() { Registry::instance().add(this); }
  void unregister_self();

  // Called by the thread that polls.
  void restart_watch();
  void warn_if_stalled();
  // Returns a line such as `<who>: <wait>, for 3.1 s of at most 300.0 s`.
  std::string describe(const std::string& who, const char* wait) const;

 private:
  // Any thread may read all of the state.
  bool dump_state(StateDump& dump) final {
    dump = dump_from_outside();
    return true;
  }
  int64_t since_ns() const { return since_ns_.load(std::memory_order_relaxed); }

  std::atomic<int64_t> since_ns_;
  protocol::StallClock stall_;
};

}  // namespace verbena::transport
