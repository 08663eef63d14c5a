// Remembers which calls of this process have not returned, for the state dump of a process that stands
// still.
#pragma once

#include <cstdint>
#include <string>

namespace verbena::softverbs {

// Calls of this process that may wait for a lock of CUDA's driver, or for the copier's answer: what a stall
// or a state dump says about them comes from here.
class WatchedCall {
 public:
  // `name` is a literal.
  explicit WatchedCall(const char* name);
  ~WatchedCall();
  WatchedCall(const WatchedCall&) = delete;
  WatchedCall& operator=(const WatchedCall&) = delete;

 private:
  int slot_;  // -1: none was free
};

// A line, without its end, for each that has not returned for so long; empty if there is none.
std::string describe_watched_calls(uint64_t least_ns);

// "5.0 s".
std::string show_seconds(uint64_t ns);

}  // namespace verbena::softverbs
