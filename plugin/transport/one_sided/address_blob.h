// What ranks tell each other to reach one another: where a rank's lanes are, and one region of its memory.
// Pure. Fixed lengths; little endian, as both ends are; the last eight bytes are a sum over all others, so
// that no byte goes unchecked. That finds mistakes, not malice: who may join a group is the bootstrap's
// business.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "verbs/types.h"

namespace verbena::transport {

inline constexpr uint32_t kMaxLanes = 16;

// Who tells whom.
struct BlobNames {
  uint64_t nonce = 0;
  uint32_t from = 0, to = 0;
  uint32_t count_ranks = 0;
};

struct PeerAddress {
  BlobNames names;
  verbs::PortAddress port{};
  std::vector<verbs::QueuePairAddress> lanes;
};

struct RegionAddress {
  BlobNames names;  // `to` is not used: the same for all
  uint32_t id = 0;
  uint32_t remote_key = 0;
  uint64_t base = 0, bytes = 0;
};

size_t measure_peer_address(uint32_t lanes);
size_t measure_region_address();

std::vector<std::byte> encode(const PeerAddress& address);
std::vector<std::byte> encode(const RegionAddress& address);

// False, with what is wrong in *problem, unless it was made for `expected`: group, sender, receiver, number
// of lanes or region.
bool decode(std::span<const std::byte> bytes, const BlobNames& expected, uint32_t lanes, PeerAddress* address,
            std::string* problem);
bool decode(std::span<const std::byte> bytes, const BlobNames& expected, uint32_t id, RegionAddress* address,
            std::string* problem);

}  // namespace verbena::transport
