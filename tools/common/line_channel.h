#pragma once
#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "base/file_descriptor.h"

namespace verbena::tools {

// Lines of text over a socket, in both directions; each call has a deadline. Owns the descriptor. It never
// reads beyond the line that it returns, so another process may continue on the same socket.
class LineChannel {
 public:
  enum class Status { kLine, kTimeout, kClosed };
  struct Received {
    Status status = Status::kTimeout;
    std::string line;
  };

  explicit LineChannel(int descriptor) : descriptor_(descriptor) {}

  // Returns false if the other side is gone or does not read before the deadline.
  bool send_line(std::string_view line, int64_t deadline_ns);
  Received receive_line(int64_t deadline_ns);

  int descriptor() const { return descriptor_.get(); }

 private:
  ssize_t read_some();

  base::FileDescriptor descriptor_;
  std::string begun_;  // the start of an incomplete line
};

// Milliseconds for poll(2) until the deadline, rounded up, never negative.
int compute_poll_timeout_ms(int64_t deadline_ns);

}  // namespace verbena::tools
