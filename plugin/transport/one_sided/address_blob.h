// What ranks tell each other to reach one another: where a rank's lanes are, on each of its rails, and one
// region of its memory.
// Pure. Fixed lengths; little endian, as both ends are; the last eight bytes are a sum over all others, so
// that no byte goes unchecked. That finds mistakes, not malice: who may join a group is the bootstrap's
// business.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/socket_address.h"
#include "bootstrap/messages.h"
#include "protocol/wire.h"
#include "verbs/types.h"

namespace verbena::transport {

inline constexpr uint32_t kMaxLanes = 16;

// Who tells whom.
struct BlobNames {
  uint64_t nonce = 0;
  uint32_t from = 0, to = 0;
  uint32_t count_ranks = 0;
};

struct RailAddress {
  verbs::PortAddress port{};
  std::vector<verbs::QueuePairAddress> lanes{};
};

struct PeerAddress {
  BlobNames names;
  uint32_t word_rail = 0;  // on which of `rails` its words are reached
  uint64_t add_rings = 0;  // where its agent takes adds (add_agent.h); 0: its device adds
  std::array<uint32_t, protocol::kMaxRails> add_keys{};  // of them, by rail of the endpoint
  std::vector<RailAddress> rails{};    // of the endpoint; at most as many as the group has agreed on
  base::SocketAddress records{};       // where its records are taken (record_links.h), and what proves
  bootstrap::Nonce nonce{}, secret{};  // that a caller was told
};

struct RegionAddress {
  BlobNames names;  // `to` is not used: the same for all
  uint32_t id = 0;
  uint64_t base = 0, bytes = 0;
  std::array<uint32_t, protocol::kMaxRails> keys{};  // by rail of the endpoint
};

size_t measure_peer_address(uint32_t lanes, uint32_t rails);
size_t measure_region_address();

// `rails`: how many the group has agreed on.
std::vector<std::byte> encode(const PeerAddress& address, uint32_t lanes, uint32_t rails);
std::vector<std::byte> encode(const RegionAddress& address);

// False, with what is wrong in *problem, unless it was made for `expected`: group, sender, receiver, number
// of lanes and rails, or region.
bool decode(std::span<const std::byte> bytes, const BlobNames& expected, uint32_t lanes, uint32_t rails,
            PeerAddress* address, std::string* problem);
bool decode(std::span<const std::byte> bytes, const BlobNames& expected, uint32_t id, RegionAddress* address,
            std::string* problem);

}  // namespace verbena::transport
