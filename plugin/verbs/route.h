// Whether a queue pair can connect two ports, and by which GIDs. Pure; both ends come to the same answer.
#pragma once

#include <string>

#include "verbs/types.h"

namespace verbena::verbs {

enum class Reach : uint8_t { kNever, kOtherSubnet, kSameSubnet };

Reach judge_reach(const PortAddress& left, const PortAddress& right, int ipv4_prefix_bits);
// Why two ports cannot be connected, with both ends' values, e.g. "link layers differ (ours Ethernet, the
// peer's InfiniBand)"; empty if they can.
std::string explain_mismatch(const PortAddress& ours, const PortAddress& theirs);

// Which of an end's GIDs a path uses, on Ethernet: the first ones if they are of one family, otherwise IPv4
// if both ends have it, otherwise IPv6. Only for ends that reach each other.
struct GidMatch {
  bool by_our_other = false, by_their_other = false;
};
GidMatch match_gids(const PortAddress& ours, const PortAddress& theirs);

// "Ethernet ::ffff:10.0.0.1 (RoCE v2)", "InfiniBand lid 17", "down"
std::string describe_port_address(const PortAddress& address);

}  // namespace verbena::verbs
