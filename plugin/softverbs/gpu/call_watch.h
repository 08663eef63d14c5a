// Records which calls of this process have not returned, for the state dump of a process that hangs.
#pragma once

#include <cstdint>
#include <string>

namespace verbena::softverbs {

// A call of this process that may wait for a lock of CUDA's driver or for the copier's answer. Stall warnings
// and state dumps name such calls.
class WatchedCall {
 public:
  // `name` must be a string literal.
  explicit WatchedCall(const char* name);
  ~WatchedCall();
  WatchedCall(const WatchedCall&) = delete;
  WatchedCall& operator=(const WatchedCall&) = delete;

 private:
  int slot_;  // -1: none was free
};

// Returns a line for each call that has not returned for `least_ns` nanoseconds, without the last line feed.
// Returns an empty string if there is no such call.
std::string describe_watched_calls(uint64_t least_ns);

// Returns a text such as "5.0 s".
std::string show_seconds(uint64_t ns);

}  // namespace verbena::softverbs
