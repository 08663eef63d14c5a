// One end of a connection, as far as others in the process have to do with it: whose turn it is
// (attendance.h), and what it tells of itself when it is asked (roster.h).
#pragma once

#include "transport/attendance.h"
#include "transport/roster.h"

namespace verbena::transport {

class Endpoint : public Attended, public RosterMember {
 protected:
  // Its state in full; by whoever has the turn.
  virtual Telling describe() = 0;
  // `send to <peer>`, as in every line of the log.
  virtual std::string describe_briefly() const = 0;

  void join_roster();
  // Before anything that is told of goes; in this order: nobody asks it any more, nobody attends to it.
  void leave_roster();
  // In slow paths, with the turn: if somebody has asked.
  void tell_if_asked() {
    if (is_asked_.load(std::memory_order_relaxed)) tell_now();
  }
  // With the turn, once it has failed: it may never be called again.
  void report_failure();
  // A line, and a report: `cause` has lasted for `waited_ns`.
  void report_stall(const std::string& cause, uint32_t open, int64_t waited_ns);
  // Where not even a look from outside is possible.
  Telling tell_nothing() const;
  ~Endpoint() = default;

 private:
  bool tell(Telling& telling) final;
  void tell_now();

  bool is_in_roster_ = false;
  std::atomic<bool> is_asked_{false};
};

}  // namespace verbena::transport
