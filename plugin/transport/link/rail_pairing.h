// Decides which rail of the sender and which rail of the receiver each queue pair of a connection uses. Pure
// computation. The receiver decides and sends the result to the sender.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "verbs/types.h"

namespace verbena::transport {

enum class PairingRule : uint8_t {  // the values of VERBENA_SUBNET_PAIRING
  kByOrder,                         // ignores subnets; routers must connect them
  kSameSubnet,                      // omits rails without a partner in their subnet
  kPreferSubnet,                    // like kSameSubnet; if no rail has a partner, like kByOrder
};

struct PairingOptions {
  PairingRule rule = PairingRule::kPreferSubnet;
  int ipv4_prefix_bits = 24;
};
PairingOptions read_pairing_options();  // reads the parameters

struct RailPath {
  uint8_t origin;  // index among the queue pairs that the sender offered
  uint8_t sender_rail, receiver_rail;

  bool operator==(const RailPath&) const = default;
};

// The sender offers queue pairs that use its rails in turn. Each queue pair is paired with the receiving rail
// that it can reach and that has the fewest queue pairs so far. A queue pair that can reach no rail is
// omitted. Returns an empty list if no rail can be reached.
std::vector<RailPath> pair_rails(std::span<const verbs::PortAddress> sender,
                                 std::span<const verbs::PortAddress> receiver, uint32_t queue_pairs,
                                 const PairingOptions& options);

// Returns why pair_rails() found no path, with the rails of both ends.
std::string explain_no_path(std::span<const verbs::PortAddress> ours,
                            std::span<const verbs::PortAddress> theirs, const PairingOptions& options);

}  // namespace verbena::transport
