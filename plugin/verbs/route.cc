#include "verbs/route.h"

#include <cstdio>
#include <optional>

#include "verbs/gid_choice.h"

namespace verbena::verbs {
namespace {

constexpr uint16_t kFullMember = 0x8000;  // bit of a partition key; two limited members cannot communicate

const char* name_link_layer(uint8_t link_layer) {
  return link_layer == kEthernet ? "Ethernet" : link_layer == kInfiniBand ? "InfiniBand" : "down";
}

const uint8_t* find_gid(const PortAddress& address, bool is_ipv4) {
  if (!is_empty_gid(address.gid) && is_ipv4_gid(address.gid) == is_ipv4) return address.gid;
  if (!is_empty_gid(address.other_gid) && is_ipv4_gid(address.other_gid) == is_ipv4) return address.other_gid;
  return nullptr;
}

// Returns whether both ends use IPv4, or an empty value if they have no family in common.
std::optional<bool> choose_family(const PortAddress& left, const PortAddress& right) {
  if (is_ipv4_gid(left.gid) == is_ipv4_gid(right.gid)) return is_ipv4_gid(left.gid);
  for (const bool is_ipv4 : {true, false}) {
    if (find_gid(left, is_ipv4) != nullptr && find_gid(right, is_ipv4) != nullptr) return is_ipv4;
  }
  return std::nullopt;
}

bool may_share_partition(uint16_t left, uint16_t right) {
  if (left == 0 || right == 0) return true;  // unknown
  return ((left ^ right) & ~kFullMember) == 0 && ((left | right) & kFullMember) != 0;
}

std::string format_key(uint16_t key) {
  char text[8];
  std::snprintf(text, sizeof(text), "0x%04x", key);
  return text;
}

std::string name_both(const char* what, const std::string& ours, const std::string& theirs) {
  return std::string(what) + " (ours " + ours + ", the peer's " + theirs + ")";
}

std::string format_gids(const PortAddress& address) {
  if (is_empty_gid(address.gid)) return "none";
  return format_gid(address.gid) +
         (is_empty_gid(address.other_gid) ? "" : " and " + format_gid(address.other_gid));
}

}  // namespace

std::string explain_mismatch(const PortAddress& ours, const PortAddress& theirs) {
  if (ours.link_layer == 0 || theirs.link_layer == 0) {
    return name_both("a port is down", name_link_layer(ours.link_layer), name_link_layer(theirs.link_layer));
  }
  if (ours.link_layer != theirs.link_layer) {
    return name_both("link layers differ", name_link_layer(ours.link_layer),
                     name_link_layer(theirs.link_layer));
  }
  if (!may_share_partition(ours.partition_key, theirs.partition_key)) {
    return name_both("partition keys do not match", format_key(ours.partition_key),
                     format_key(theirs.partition_key));
  }
  if (ours.link_layer != kEthernet) return {};
  if (ours.roce_version != 0 && theirs.roce_version != 0 && ours.roce_version != theirs.roce_version) {
    return name_both("RoCE versions differ", "v" + std::to_string(ours.roce_version),
                     "v" + std::to_string(theirs.roce_version));
  }
  if (is_empty_gid(ours.gid) || is_empty_gid(theirs.gid)) {
    return name_both("a port has no GID", format_gids(ours), format_gids(theirs));
  }
  if (!choose_family(ours, theirs)) {
    return name_both("no address family in common", format_gids(ours), format_gids(theirs));
  }
  return {};
}

Reach judge_reach(const PortAddress& left, const PortAddress& right, int ipv4_prefix_bits) {
  if (!explain_mismatch(left, right).empty()) return Reach::kNever;
  const GidMatch match = match_gids(left, right);
  const bool is_same = is_same_subnet(match.by_our_other ? left.other_gid : left.gid,
                                      match.by_their_other ? right.other_gid : right.gid, ipv4_prefix_bits);
  // An InfiniBand port that sent no GID has only its LID, which is valid only within its subnet.
  const bool is_by_lid =
      left.link_layer == kInfiniBand && (is_empty_gid(left.gid) || is_empty_gid(right.gid));
  return is_same || is_by_lid ? Reach::kSameSubnet : Reach::kOtherSubnet;
}

GidMatch match_gids(const PortAddress& ours, const PortAddress& theirs) {
  if (ours.link_layer != kEthernet) return {};
  const auto is_ipv4 = choose_family(ours, theirs);
  if (!is_ipv4) return {};
  return {find_gid(ours, *is_ipv4) == ours.other_gid, find_gid(theirs, *is_ipv4) == theirs.other_gid};
}

std::string describe_port_address(const PortAddress& address) {
  std::string layer = name_link_layer(address.link_layer);
  if (address.link_layer == kInfiniBand) {
    return layer + " lid " + std::to_string(address.lid) + " gid " + format_gid(address.gid);
  }
  if (address.link_layer != kEthernet) return layer;
  const char* version = address.roce_version == 2   ? " (RoCE v2)"
                        : address.roce_version == 1 ? " (RoCE v1)"
                                                    : "";
  return layer + " " + format_gids(address) + version;
}

}  // namespace verbena::verbs
