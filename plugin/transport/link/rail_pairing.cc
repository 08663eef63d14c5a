#include "transport/link/rail_pairing.h"

#include <algorithm>
#include <optional>

#include "base/parameters.h"
#include "verbs/gid_choice.h"
#include "verbs/route.h"

namespace verbena::transport {

namespace {

using verbs::PortAddress;
using verbs::Reach;

std::optional<size_t> find_partner(const PortAddress& from, std::span<const PortAddress> candidates,
                                   Reach least, int ipv4_prefix_bits, std::span<const uint32_t> uses) {
  std::optional<size_t> best;
  for (size_t r = 0; r < candidates.size(); ++r) {
    if (judge_reach(from, candidates[r], ipv4_prefix_bits) < least) continue;
    if (!best || uses[r] < uses[*best]) best = r;
  }
  return best;
}

std::vector<RailPath> pair_by(Reach least, std::span<const PortAddress> sender,
                              std::span<const PortAddress> receiver, uint32_t queue_pairs,
                              int ipv4_prefix_bits) {
  std::vector<RailPath> paths;
  std::vector<uint32_t> uses(receiver.size());
  for (uint32_t q = 0; q < queue_pairs; ++q) {
    const size_t rail = q % sender.size();
    const auto partner = find_partner(sender[rail], receiver, least, ipv4_prefix_bits, uses);
    if (!partner) continue;
    ++uses[*partner];
    paths.push_back({static_cast<uint8_t>(q), static_cast<uint8_t>(rail), static_cast<uint8_t>(*partner)});
  }
  return paths;
}

// Returns a text such as "2 rails: Ethernet ::ffff:10.0.0.1 (RoCE v2) in 10.0.0.0/24, Ethernet ...".
std::string describe_rails(std::span<const PortAddress> rails, int ipv4_prefix_bits) {
  std::string text = std::to_string(rails.size()) + (rails.size() == 1 ? " rail:" : " rails:");
  for (size_t r = 0; r < rails.size(); ++r) {
    text += (r == 0 ? " " : ", ") + describe_port_address(rails[r]);
    if (!verbs::is_empty_gid(rails[r].gid))
      text += " in " + verbs::format_subnet(rails[r].gid, ipv4_prefix_bits);
  }
  return text;
}

}  // namespace

PairingOptions read_pairing_options() {
  return {static_cast<PairingRule>(base::parameters().subnet_pairing),
          static_cast<int>(base::parameters().subnet_prefix_bits)};
}

std::vector<RailPath> pair_rails(std::span<const PortAddress> sender, std::span<const PortAddress> receiver,
                                 uint32_t queue_pairs, const PairingOptions& options) {
  const auto pair = [&](Reach least) {
    return pair_by(least, sender, receiver, queue_pairs, options.ipv4_prefix_bits);
  };
  if (options.rule == PairingRule::kByOrder) return pair(Reach::kOtherSubnet);
  auto paths = pair(Reach::kSameSubnet);
  if (!paths.empty() || options.rule == PairingRule::kSameSubnet) return paths;
  return pair(Reach::kOtherSubnet);
}

std::string explain_no_path(std::span<const PortAddress> ours, std::span<const PortAddress> theirs,
                            const PairingOptions& options) {
  std::string cause;
  for (const PortAddress& own : ours) {
    for (const PortAddress& other : theirs) {
      if (cause.empty()) cause = explain_mismatch(own, other);
    }
  }
  const bool is_subnet = std::any_of(ours.begin(), ours.end(), [&](const PortAddress& own) {
    return std::any_of(theirs.begin(), theirs.end(), [&](const PortAddress& other) {
      return judge_reach(own, other, options.ipv4_prefix_bits) == Reach::kOtherSubnet;
    });
  });
  if (is_subnet)
    cause =
        "the two hosts have no subnet in common, and VERBENA_SUBNET_PAIRING=1 pairs rails only within a "
        "subnet";
  return "no rail reaches a rail of the peer: " + cause +
         "; rails of this rank: " + describe_rails(ours, options.ipv4_prefix_bits) +
         "; rails of the peer: " + describe_rails(theirs, options.ipv4_prefix_bits);
}

}  // namespace verbena::transport
