// Which network interface the handshake uses.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/socket_address.h"
#include "base/status.h"

namespace verbena::base {

// One address of one interface that is up; port 0.
struct InterfaceAddress {
  std::string name;
  SocketAddress address;
  bool is_loopback = false;
};

Result<std::vector<InterfaceAddress>> list_interface_addresses();

// `filter` in the syntax of VERBENA_SOCKET_IFNAME: names separated by commas are prefixes, a leading = makes
// them exact, a leading ^ makes the list an exclusion, ^= both.
bool matches_filter(std::string_view filter, std::string_view name);

// With a filter: the first interface that matches it. Without: the first that is neither loopback nor a
// container bridge, otherwise loopback. Prefers its IPv4 addresses; link-local ones come last, because their
// scope is valid on this host only. Empty if there is none.
std::optional<InterfaceAddress> select_interface(std::span<const InterfaceAddress> candidates,
                                                 std::string_view filter);

}  // namespace verbena::base
