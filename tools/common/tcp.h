#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "common/line_channel.h"

namespace verbena::tools {

// A connection between a tool and the same tool on another host.
struct TcpConnection {
  LineChannel channel;
  std::string peer;  // "10.0.0.1:4711"
};

// Listens on every address of this host, IPv6 and IPv4. Every error is a ToolError.
class TcpListener {
 public:
  // Port 0 is any free port.
  explicit TcpListener(uint16_t port);

  uint16_t port() const;
  // Returns an empty value if no connection came before the deadline.
  std::optional<TcpConnection> accept(int64_t deadline_ns);

 private:
  base::FileDescriptor descriptor_;
};

// Retries until the peer listens or the deadline has passed.
TcpConnection connect_tcp(const std::string& host, uint16_t port, int64_t deadline_ns);

}  // namespace verbena::tools
