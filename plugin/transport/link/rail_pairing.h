// Which rail of the sender each queue pair of a connection joins with which rail of the receiver. Pure; the
// receiver decides and tells.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "verbs/types.h"

namespace verbena::transport {

enum class PairingRule : uint8_t {  // VERBENA_SUBNET_PAIRING's values
  kByOrder,                         // whatever the subnets: something routes between them
  kSameSubnet,                      // rails without a partner in their subnet are left out
  kPreferSubnet,                    // the same, unless no rail has a partner: then by order
};

struct PairingOptions {
  PairingRule rule = PairingRule::kPreferSubnet;
  int ipv4_prefix_bits = 24;
};
PairingOptions read_pairing_options();  // from the parameters

struct RailPath {
  uint8_t origin;  // which of the queue pairs that the sender offered
  uint8_t sender_rail, receiver_rail;

  bool operator==(const RailPath&) const = default;
};

// The sender offers queue pairs that go round its rails. Each is given the receiving rail that it reaches and
// that has the fewest so far; what reaches none is left out. Empty: nothing reaches anything.
std::vector<RailPath> pair_rails(std::span<const verbs::PortAddress> sender,
                                 std::span<const verbs::PortAddress> receiver, uint32_t queue_pairs,
                                 const PairingOptions& options);

// Why pair_rails() found nothing, with both ends' rails.
std::string explain_no_path(std::span<const verbs::PortAddress> ours,
                            std::span<const verbs::PortAddress> theirs, const PairingOptions& options);

}  // namespace verbena::transport
