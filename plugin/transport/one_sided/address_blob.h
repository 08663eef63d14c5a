// The addresses that ranks exchange to reach each other: the lanes of a rank on each of its rails, and a
// region of its memory.
//
// Pure functions. Fixed lengths, little endian. The last eight bytes are a checksum of all other bytes. It
// detects mistakes but not attacks; the bootstrap decides who may join a group.
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

// The sender and the receiver of a blob.
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
  uint32_t word_rail = 0;  // the rail of `rails` on which its words are accessed
  uint64_t add_rings = 0;  // where its agent takes adds (add_agent.h); 0: its device adds
  std::array<uint32_t, protocol::kMaxRails> add_keys{};  // keys of the add rings, by rail of the endpoint
  std::vector<RailAddress> rails{};                      // at most as many as the group has agreed on
  base::SocketAddress records{};                         // where it receives records (record_links.h)
  bootstrap::Nonce nonce{}, secret{};                    // authenticate the sender of a record
};

struct RegionAddress {
  BlobNames names;  // `to` is unused, because the blob is the same for all ranks
  uint32_t id = 0;
  uint64_t base = 0, bytes = 0;
  std::array<uint32_t, protocol::kMaxRails> keys{};  // by rail of the endpoint
};

size_t measure_peer_address(uint32_t lanes, uint32_t rails);
size_t measure_region_address();

// `rails` is the number of rails that the group has agreed on.
std::vector<std::byte> encode(const PeerAddress& address, uint32_t lanes, uint32_t rails);
std::vector<std::byte> encode(const RegionAddress& address);

// Returns false, with the reason in *problem, unless the blob was made for `expected`: the same group,
// sender, receiver, number of lanes and rails, or region.
bool decode(std::span<const std::byte> bytes, const BlobNames& expected, uint32_t lanes, uint32_t rails,
            PeerAddress* address, std::string* problem);
bool decode(std::span<const std::byte> bytes, const BlobNames& expected, uint32_t id, RegionAddress* address,
            std::string* problem);

}  // namespace verbena::transport
