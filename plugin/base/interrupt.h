// Lets an interpreter have its turn while its main thread waits in this library: a signal's handler of Python
// runs only between two steps of the interpreter, so without a turn Ctrl-C would wait for the end of the
// wait.
#pragma once

#include <cstdint>

namespace verbena::base {

// Runs what signals have left to do. Not 0: the wait ends.
using InterruptCheck = int (*)();

// For the whole process; null: none, which is the default.
void set_interrupt_check(InterruptCheck check);
bool has_interrupt_check();

// Asked after each step of a wait and after each signal. False without a check, and on other threads than the
// process's first, on which interpreters handle signals.
bool is_interrupted();

// In a wait that spins: the same, asked every few milliseconds.
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
