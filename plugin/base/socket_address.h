// An IP address and port as plain bytes, so that it fits NCCL's 128-byte handle and means the same on every
// host.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>

namespace verbena::base {

enum class IpFamily : uint16_t { kNone = 0, kV4 = 4, kV6 = 6 };

struct SocketAddress {
  IpFamily family = IpFamily::kNone;
  uint16_t port = 0;       // host byte order
  uint32_t scope_id = 0;   // of a link-local IPv6 address
  uint8_t bytes[16] = {};  // network byte order; IPv4 uses the first four

  bool operator==(const SocketAddress&) const = default;
};
static_assert(sizeof(SocketAddress) == 24 && std::is_trivially_copyable_v<SocketAddress>);

// Converts the address to a sockaddr, and returns its length.
struct SystemAddress {
  sockaddr_storage storage{};
  socklen_t length_bytes = 0;
};

// Returns an empty value if the family is neither IPv4 nor IPv6: the address may come from a peer.
std::optional<SystemAddress> to_system(const SocketAddress& address);
std::optional<SocketAddress> from_system(const sockaddr* address);

bool is_link_local(const SocketAddress& address);
bool is_loopback(const SocketAddress& address);
// Returns 127.0.0.1, or ::1.
SocketAddress make_loopback(IpFamily family = IpFamily::kV4, uint16_t port = 0);

// Returns a text such as 10.0.0.1:4711 or [fe80::1%2]:4711.
std::string describe(const SocketAddress& address);

}  // namespace verbena::base
