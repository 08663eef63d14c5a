#include "base/socket_address.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <cstring>

namespace verbena::base {

std::optional<SystemAddress> to_system(const SocketAddress& address) {
  SystemAddress result;
  if (address.family == IpFamily::kV4) {
    auto* target = reinterpret_cast<sockaddr_in*>(&result.storage);
    target->sin_family = AF_INET;
    target->sin_port = htons(address.port);
    std::memcpy(&target->sin_addr, address.bytes, sizeof target->sin_addr);
    result.length_bytes = sizeof *target;
  } else if (address.family == IpFamily::kV6) {
    auto* target = reinterpret_cast<sockaddr_in6*>(&result.storage);
    target->sin6_family = AF_INET6;
    target->sin6_port = htons(address.port);
    target->sin6_scope_id = address.scope_id;
    std::memcpy(&target->sin6_addr, address.bytes, sizeof target->sin6_addr);
    result.length_bytes = sizeof *target;
  } else {
    return std::nullopt;
  }
  return result;
}

std::optional<SocketAddress> from_system(const sockaddr* address) {
  SocketAddress result;
  if (address == nullptr) return std::nullopt;
  if (address->sa_family == AF_INET) {
    const auto* source = reinterpret_cast<const sockaddr_in*>(address);
    result.family = IpFamily::kV4;
    result.port = ntohs(source->sin_port);
    std::memcpy(result.bytes, &source->sin_addr, sizeof source->sin_addr);
  } else if (address->sa_family == AF_INET6) {
    const auto* source = reinterpret_cast<const sockaddr_in6*>(address);
    result.family = IpFamily::kV6;
    result.port = ntohs(source->sin6_port);
    result.scope_id = source->sin6_scope_id;
    std::memcpy(result.bytes, &source->sin6_addr, sizeof source->sin6_addr);
  } else {
    return std::nullopt;
  }
  return result;
}

bool is_link_local(const SocketAddress& address) {
  if (address.family == IpFamily::kV4) return address.bytes[0] == 169 && address.bytes[1] == 254;
  return address.family == IpFamily::kV6 && address.bytes[0] == 0xfe && (address.bytes[1] & 0xc0) == 0x80;
}

SocketAddress make_loopback(IpFamily family, uint16_t port) {
  SocketAddress loopback{.family = family, .port = port};
  if (family == IpFamily::kV4) loopback.bytes[0] = 127;
  loopback.bytes[family == IpFamily::kV4 ? 3 : 15] = 1;
  return loopback;
}

bool is_loopback(const SocketAddress& address) {
  if (address.family == IpFamily::kV4) return address.bytes[0] == 127;
  const SocketAddress loopback = make_loopback(IpFamily::kV6);
  return address.family == IpFamily::kV6 &&
         std::memcmp(address.bytes, loopback.bytes, sizeof(address.bytes)) == 0;
}

std::string describe(const SocketAddress& address) {
  char text[INET6_ADDRSTRLEN] = "?";
  const std::string port = ":" + std::to_string(address.port);
  if (address.family == IpFamily::kV4) {
    inet_ntop(AF_INET, address.bytes, text, sizeof text);
    return text + port;
  }
  if (address.family != IpFamily::kV6) return "no address";
  inet_ntop(AF_INET6, address.bytes, text, sizeof text);
  const std::string scope = address.scope_id == 0 ? "" : "%" + std::to_string(address.scope_id);
  return "[" + std::string(text) + scope + "]" + port;
}

}  // namespace verbena::base
