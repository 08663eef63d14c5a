// Lets Python handle signals while its main thread waits in this library. Python runs a signal's handler only
// between two steps of the interpreter, so without this check Ctrl-C would have no effect until the wait
// ends.
#pragma once

#include <cstdint>

namespace verbena::base {

// Runs pending signal handlers. A nonzero result ends the wait.
using InterruptCheck = int (*)();

// Sets the check for the whole process; null (the default) for none.
void set_interrupt_check(InterruptCheck check);
bool has_interrupt_check();

// Call it after each step of a wait and after each signal. Returns false without a check, and on all threads
// except the process's first one, because interpreters handle signals only there.
bool is_interrupted();

// Does the same for a wait that spins: checks every few milliseconds.
class InterruptPoll {
 public:
  bool is_interrupted(int64_t now_ns) {
    if (now_ns < next_ns_) return false;
    next_ns_ = now_ns + kIntervalNs;
    return base::is_interrupted();
  }

 private:
  static constexpr int64_t kIntervalNs = 10'000'000;
  int64_t next_ns_ = 0;
};

}  // namespace verbena::base
