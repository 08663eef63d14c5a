// Determines whether a queue pair can connect two ports, and with which GIDs. Pure functions; both ends get
// the same result.
#pragma once

#include <string>

#include "verbs/types.h"

namespace verbena::verbs {

enum class Reach : uint8_t { kNever, kOtherSubnet, kSameSubnet };

Reach judge_reach(const PortAddress& left, const PortAddress& right, int ipv4_prefix_bits);
// Returns why two ports cannot be connected, with the values of both ends, e.g. "link layers differ (ours
// Ethernet, the peer's InfiniBand)". Returns an empty string if they can be connected.
std::string explain_mismatch(const PortAddress& ours, const PortAddress& theirs);

// The GIDs that a path on Ethernet uses: the first GIDs of both ends if they are of one family, otherwise
// IPv4 if both ends have it, otherwise IPv6. Only for ends that can be connected.
struct GidMatch {
  bool by_our_other = false, by_their_other = false;
};
GidMatch match_gids(const PortAddress& ours, const PortAddress& theirs);

// Returns a text such as "Ethernet ::ffff:10.0.0.1 (RoCE v2)", "InfiniBand lid 17" or "down".
std::string describe_port_address(const PortAddress& address);

}  // namespace verbena::verbs
