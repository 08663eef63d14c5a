#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace verbena::tools {

// Lines of text over a socket, in both directions, each call bounded by a deadline. Owns the descriptor.
class LineChannel {
 public:
  enum class Status { kLine, kTimeout, kClosed };
  struct Received {
    Status status = Status::kTimeout;
    std::string line;
  };

  explicit LineChannel(int descriptor) : descriptor_(descriptor) {}
  LineChannel(LineChannel&& other) noexcept;
  LineChannel& operator=(LineChannel&& other) noexcept;
  ~LineChannel();

  // False when the other side is gone or does not read until the deadline.
  bool send_line(std::string_view line, int64_t deadline_ns);
  Received receive_line(int64_t deadline_ns);

  // A line that has already arrived in full, without touching the socket.
  std::optional<std::string> take_buffered_line();

  int descriptor() const { return descriptor_; }

 private:
  void close_descriptor();
  // 1 data came, 0 deadline, -1 closed.
  int read_more(int64_t deadline_ns);

  int descriptor_;
  std::string buffer_;
};

// Milliseconds for poll(2) until the deadline, rounded up, never negative.
int compute_poll_timeout_ms(int64_t deadline_ns);

}  // namespace verbena::tools
