#include "transport/one_sided/address_blob.h"

#include <cstring>
#include <type_traits>

#include "base/text.h"

namespace verbena::transport {

namespace {

constexpr uint16_t kVersion = 3;
constexpr uint16_t kPeerKind = 1, kRegionKind = 2;
constexpr uint32_t kMagic = 0x31535656;  // "VVS1"

// These structures have no padding, so that every byte has a meaning.
struct Head {
  uint32_t magic;
  uint16_t version, kind;
  uint64_t nonce;
  uint32_t from, to, count_ranks;
  uint32_t count;  // number of lanes, or the region's id
};
static_assert(sizeof(Head) == 32 && std::has_unique_object_representations_v<Head>);

struct PeerRecord {
  uint32_t word_rail, count_rails;
  uint64_t add_rings;
  std::array<uint32_t, protocol::kMaxRails> add_keys;
  base::SocketAddress records;
  bootstrap::Nonce nonce, secret;
};
static_assert(std::has_unique_object_representations_v<PeerRecord>);

struct LaneRecord {
  uint32_t number, first_psn, outstanding_reads;
  uint32_t ece[3];
};
static_assert(sizeof(LaneRecord) == 24 && std::has_unique_object_representations_v<LaneRecord>);

struct RegionRecord {
  uint64_t base, bytes;
  std::array<uint32_t, protocol::kMaxRails> keys;
};
static_assert(sizeof(RegionRecord) == 48 && std::has_unique_object_representations_v<RegionRecord>);

uint32_t count_of(uint32_t lanes, uint32_t rails) {
  return rails << 16 | lanes;
}

using Sum = uint64_t;

// Each step is a bijection of the previous sum, so a change of a single byte always changes the result.
Sum compute_sum(std::span<const std::byte> bytes) {
  Sum sum = 0xcbf29ce484222325;
  for (const std::byte byte : bytes) sum = (sum ^ static_cast<uint8_t>(byte)) * 0x100000001b3;
  return sum;
}

template <typename T>
void put(std::vector<std::byte>& bytes, const T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  const auto* start = reinterpret_cast<const std::byte*>(&value);
  bytes.insert(bytes.end(), start, start + sizeof(value));
}

template <typename T>
T take(std::span<const std::byte>& bytes) {
  T value;
  std::memcpy(&value, bytes.data(), sizeof(value));
  bytes = bytes.subspan(sizeof(value));
  return value;
}

Head make_head(uint16_t kind, const BlobNames& names, uint32_t count) {
  return {kMagic, kVersion, kind, names.nonce, names.from, names.to, names.count_ranks, count};
}

bool refuse(std::string* problem, const char* what, uint64_t found, uint64_t expected) {
  problem->clear();
  base::append(*problem, "%s (found %llu, expected %llu)", what, static_cast<unsigned long long>(found),
               static_cast<unsigned long long>(expected));
  return false;
}

// Checks the head and the checksum. The caller has checked the length.
bool check(std::span<const std::byte> bytes, const Head& expected, std::string* problem) {
  std::span<const std::byte> rest = bytes;
  const Head head = take<Head>(rest);
  if (head.magic != expected.magic || head.kind != expected.kind)
    return refuse(problem, "has the wrong kind", head.kind, expected.kind);
  if (head.version != expected.version)
    return refuse(problem, "is of a different version", head.version, expected.version);
  std::span<const std::byte> tail = bytes.last(sizeof(Sum));
  const Sum sum = compute_sum(bytes.first(bytes.size() - sizeof(Sum)));
  if (const Sum told = take<Sum>(tail); told != sum)
    return refuse(problem, "is damaged, because its checksum is wrong", told, sum);
  if (head.nonce != expected.nonce)
    return refuse(problem, "is of a different group", head.nonce, expected.nonce);
  if (head.count_ranks != expected.count_ranks)
    return refuse(problem, "comes from a group with a different number of ranks", head.count_ranks,
                  expected.count_ranks);
  if (head.from != expected.from) return refuse(problem, "belongs to another rank", head.from, expected.from);
  if (head.to != expected.to) return refuse(problem, "is for another rank", head.to, expected.to);
  if (head.count == expected.count) return true;
  const char* what =
      head.kind == kPeerKind ? "has a different number of lanes or rails" : "belongs to another region";
  return refuse(problem, what, head.count, expected.count);
}

bool check_length(std::span<const std::byte> bytes, size_t expected, std::string* problem) {
  return bytes.size() == expected || refuse(problem, "has a wrong length", bytes.size(), expected);
}

void seal(std::vector<std::byte>& bytes) {
  put(bytes, compute_sum(bytes));
}

}  // namespace

size_t measure_peer_address(uint32_t lanes, uint32_t rails) {
  return sizeof(Head) + sizeof(PeerRecord) +
         rails * (sizeof(verbs::PortAddress) + lanes * sizeof(LaneRecord)) + sizeof(Sum);
}

size_t measure_region_address() {
  return sizeof(Head) + sizeof(RegionRecord) + sizeof(Sum);
}

// Rails that the endpoint does not have are zeros, so that all addresses have the same length.
std::vector<std::byte> encode(const PeerAddress& address, uint32_t lanes, uint32_t rails) {
  std::vector<std::byte> bytes;
  bytes.reserve(measure_peer_address(lanes, rails));
  put(bytes, make_head(kPeerKind, address.names, count_of(lanes, rails)));
  put(bytes, PeerRecord{address.word_rail, static_cast<uint32_t>(address.rails.size()), address.add_rings,
                        address.add_keys, address.records, address.nonce, address.secret});
  for (uint32_t rail = 0; rail < rails; ++rail) {
    const RailAddress& one = rail < address.rails.size() ? address.rails[rail] : RailAddress();
    put(bytes, one.port);
    for (uint32_t lane = 0; lane < lanes; ++lane) {
      const verbs::QueuePairAddress pair =
          lane < one.lanes.size() ? one.lanes[lane] : verbs::QueuePairAddress{0, 0, {}, 0};
      put(bytes, LaneRecord{pair.number,
                            pair.first_psn,
                            pair.outstanding_reads,
                            {pair.ece.vendor_id, pair.ece.options, pair.ece.mask}});
    }
  }
  seal(bytes);
  return bytes;
}

std::vector<std::byte> encode(const RegionAddress& address) {
  std::vector<std::byte> bytes;
  bytes.reserve(measure_region_address());
  put(bytes, make_head(kRegionKind, address.names, address.id));
  put(bytes, RegionRecord{address.base, address.bytes, address.keys});
  seal(bytes);
  return bytes;
}

bool decode(std::span<const std::byte> bytes, const BlobNames& expected, uint32_t lanes, uint32_t rails,
            PeerAddress* address, std::string* problem) {
  if (!check_length(bytes, measure_peer_address(lanes, rails), problem)) return false;
  if (!check(bytes, make_head(kPeerKind, expected, count_of(lanes, rails)), problem)) return false;
  bytes = bytes.subspan(sizeof(Head));
  const auto peer = take<PeerRecord>(bytes);
  if (peer.count_rails == 0 || peer.count_rails > rails)
    return refuse(problem, "has an invalid number of rails", peer.count_rails, rails);
  if (peer.word_rail >= peer.count_rails)
    return refuse(problem, "has an invalid rail for words", peer.word_rail, peer.count_rails);
  *address = {expected, peer.word_rail, peer.add_rings, peer.add_keys,
              {},       peer.records,   peer.nonce,     peer.secret};
  for (uint32_t rail = 0; rail < peer.count_rails; ++rail) {
    RailAddress& one = address->rails.emplace_back();
    one.port = take<verbs::PortAddress>(bytes);
    for (uint32_t lane = 0; lane < lanes; ++lane) {
      const auto record = take<LaneRecord>(bytes);
      one.lanes.push_back({record.number,
                           record.first_psn,
                           {record.ece[0], record.ece[1], record.ece[2]},
                           record.outstanding_reads});
    }
  }
  return true;
}

bool decode(std::span<const std::byte> bytes, const BlobNames& expected, uint32_t id, RegionAddress* address,
            std::string* problem) {
  if (!check_length(bytes, measure_region_address(), problem)) return false;
  BlobNames names = expected;
  names.to = 0;
  if (!check(bytes, make_head(kRegionKind, names, id), problem)) return false;
  bytes = bytes.subspan(sizeof(Head));
  const auto record = take<RegionRecord>(bytes);
  if (record.bytes == 0 || record.base + record.bytes < record.base)
    return refuse(problem, "has an invalid range", record.bytes, UINT64_MAX - record.base);
  *address = {names, id, record.base, record.bytes, record.keys};
  return true;
}

}  // namespace verbena::transport
