// Chooses the network interface for the handshake.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/socket_address.h"
#include "base/status.h"

namespace verbena::base {

// An address of an interface that is up. Its port is 0.
struct InterfaceAddress {
  std::string name;
  SocketAddress address;
  bool is_loopback = false;
  bool is_running = true;  // it has a carrier
};

Result<std::vector<InterfaceAddress>> list_interface_addresses();

// Returns whether an interface matches a filter, which has the syntax of VERBENA_SOCKET_IFNAME: a list of
// prefixes, separated by commas. With a leading = the names must match exactly; a leading ^ excludes the
// listed names; ^= does both.
bool matches_filter(std::string_view filter, std::string_view name);

// Chooses the address that other hosts most likely reach, among the interfaces that match the filter:
//   1. a carrier, and an address that is not link-local (every host's BMC may have the same link-local one)
//   2. a link-local address
//   3. no carrier
//   4. loopback
//   5. a bridge of a container runtime
// Ties go to the system's first interface, and to IPv4. A filter that names interfaces (no leading ^) treats
// loopback and bridges as ordinary ones. Empty if no interface matches.
std::optional<InterfaceAddress> select_interface(std::span<const InterfaceAddress> candidates,
                                                 std::string_view filter);

}  // namespace verbena::base
