#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "common/line_channel.h"

namespace verbena::tools {

// A connection of a tool to the same tool on another host.
struct TcpConnection {
  LineChannel channel;
  std::string peer;  // "10.0.0.1:4711"
};

// Takes callers on every address of this host, IPv6 and IPv4. All failures are ToolErrors.
class TcpListener {
 public:
  // 0 takes any free port.
  explicit TcpListener(uint16_t port);
  TcpListener(const TcpListener&) = delete;
  TcpListener& operator=(const TcpListener&) = delete;
  ~TcpListener();

  uint16_t port() const;
  // Empty when nobody has called until the deadline.
  std::optional<TcpConnection> accept(int64_t deadline_ns);

 private:
  int descriptor_;
};

// Calls again until somebody listens there or the deadline has passed.
TcpConnection connect_tcp(const std::string& host, uint16_t port, int64_t deadline_ns);

}  // namespace verbena::tools
