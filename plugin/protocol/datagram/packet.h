// What a datagram says. Little endian; the immediate in the order of the network, as verbs wants it.
//
// The immediate is in the completion, so that the peer and the kind are known before any memory is touched:
//
//   bits 0..15  slot: the receiver's index of this peer; kStrangerSlot before it has told its index
//   16..20 path  21 last packet of its message  22 to be acknowledged at once  23 sent before
//   24..26 kind  27..31 generation of the slot, its low bits
//
// A data packet is the header (24 bytes) and what both engines can take of the message (EngineName); the
// header lands in a line of host memory of its own, the data on the first byte of a page. Everything else is
// the header and a body.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <span>

namespace verbena::protocol::datagram {

inline constexpr uint32_t kPaths = 32;
inline constexpr uint16_t kStrangerSlot = 0xFFFF;
inline constexpr uint16_t kNoChannel =
    0xFFFF;  // of a packet whose message was given up: its number alone counts
inline constexpr uint32_t kMessageNumbers = 2048;  // a packet names its message modulo this
inline constexpr uint32_t kPacketIndexBits = 21;
inline constexpr uint32_t kMaxPacketIndex =
    1U << kPacketIndexBits;                      // a message has fewer packets: a grant names their number
inline constexpr uint32_t kSpan = 1984;          // packets from the oldest unacknowledged one on
inline constexpr uint32_t kSlicePackets = 256;   // that one acknowledgement tells of
inline constexpr uint32_t kEagerSpan = 32;       // the same of eager packets, which have numbers of their own
inline constexpr uint32_t kMaxGrantsPerAck = 3;  // 104 bytes in all, which many devices send inline
inline constexpr uint32_t kMaxWishesPerRequest = 16;
// Of a message that takes a short page (page_budget.h) where the receiver has such.
inline constexpr uint32_t kShortBytes = 16384;

// 64 ns units of a process's clock, which wrap after 275 s.
using Stamp = uint32_t;
inline constexpr int64_t kStampNs = 64;
inline Stamp make_stamp(int64_t now_ns) {
  return static_cast<Stamp>(static_cast<uint64_t>(now_ns) / kStampNs);
}

enum class PacketKind : uint8_t {
  kGranted,  // data that the receiver has granted
  kEager,    // data that it has not
  kAck,
  kHello,
  kWelcome,
  kRequest,  // messages that wait for a grant; without any: is anybody there?
  kClose,    // of a channel
  kReset,    // its sender has given this peer up; with a body: of a process that has ended
};

inline bool carries_data(PacketKind kind) {
  return kind <= PacketKind::kEager;
}

struct Immediate {
  uint16_t slot = kStrangerSlot;
  uint8_t path = 0;
  bool is_last = false, asks = false, is_resent = false;
  PacketKind kind = PacketKind::kGranted;
  uint8_t generation = 0;

  uint32_t encode() const {
    return uint32_t{slot} | uint32_t{path} << 16 | uint32_t{is_last} << 21 | uint32_t{asks} << 22 |
           uint32_t{is_resent} << 23 | static_cast<uint32_t>(kind) << 24 | uint32_t{generation} << 27;
  }
  static Immediate decode(uint32_t bits) {
    return {static_cast<uint16_t>(bits),     static_cast<uint8_t>(bits >> 16 & 31),
            (bits >> 21 & 1) != 0,           (bits >> 22 & 1) != 0,
            (bits >> 23 & 1) != 0,           static_cast<PacketKind>(bits >> 24 & 7),
            static_cast<uint8_t>(bits >> 27)};
  }
};

// A message's place in its channel and a packet's in its message.
struct Place {
  uint16_t message = 0;  // number modulo kMessageNumbers
  uint32_t index = 0;

  uint32_t encode() const { return uint32_t{message} << kPacketIndexBits | index; }
  static Place decode(uint32_t bits) {
    return {static_cast<uint16_t>(bits >> kPacketIndexBits), bits & (kMaxPacketIndex - 1)};
  }
};

struct PacketHeader {
  uint64_t tag;
  uint32_t
      psn;  // of an eager packet: its number among those; of an acknowledgement: all before it have arrived
  uint32_t place;    // of an acknowledgement: what its slice begins with
  uint16_t channel;  // the sender's number of it
  uint16_t backlog;  // packets of the message behind this one, at most 65535
  Stamp time;        // when it was sent, by the sender's clock
};
static_assert(sizeof(PacketHeader) == 24, "wire format");

// State, not events: what is lost, doubled or late harms nobody.
struct AckBody {
  std::array<uint64_t, kSlicePackets / 64> received;
  Stamp echo;                 // the time of the newest packet
  uint16_t hold;              // since it arrived, in 64 ns units; kNoSample: nothing new has come
  uint16_t duplicates;        // seen so far
  uint32_t late_paths;        // a bit for each that has brought a late packet since the last acknowledgement
  uint32_t eager_limit;       // so many eager packets may have been sent in all
  uint32_t eager_cumulative;  // all eager packets before it have arrived
  uint32_t eager_received;    // a bit for each from there on
};
static_assert(sizeof(AckBody) == 56, "wire format");
inline constexpr uint16_t kNoSample = 0xFFFF;

// "This message up to, not including, this index."
struct GrantRecord {
  uint16_t channel;
  uint16_t reserved;
  uint32_t place;
};
static_assert(sizeof(GrantRecord) == 8, "wire format");

// A message that waits for a grant, and how many packets it is.
struct Wish {
  uint16_t channel;
  uint16_t message;
  uint32_t packets;
};
static_assert(sizeof(Wish) == 8, "wire format");

// The longest packet that carries no data: an acknowledgement with all its grants, or a request.
inline constexpr uint32_t kMaxControlBytes = sizeof(PacketHeader) + kMaxWishesPerRequest * sizeof(Wish);
static_assert(sizeof(PacketHeader) + sizeof(AckBody) + kMaxGrantsPerAck * sizeof(GrantRecord) <=
              kMaxControlBytes);

// Of one direction between two peers.
struct TagKeys {
  uint64_t first = 0, second = 0;
};

namespace detail {
// A multiplication of 64 by 64 bits, folded: every bit of both reaches every bit of the result.
inline uint64_t fold(uint64_t a, uint64_t b) {
  const __uint128_t product = static_cast<__uint128_t>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}
}  // namespace detail

// Rejects what was sent by a stranger who cannot read the wire, by an earlier process, to somebody else, or
// was damaged in its header; of packets without data also in the body. Who reads the wire can make one.
// Path and the wish to be acknowledged are hints, and not covered.
inline uint64_t make_tag(const TagKeys& keys, const PacketHeader& header, const Immediate& immediate,
                         std::span<const uint8_t> body = {}) {
  const uint64_t a = uint64_t{header.psn} | uint64_t{header.place} << 32;
  const uint64_t b = uint64_t{header.channel} | uint64_t{header.backlog} << 16 | uint64_t{header.time} << 32;
  const uint64_t kind = static_cast<uint64_t>(immediate.kind) << 1 | uint64_t{immediate.is_last};
  uint64_t tag = detail::fold(a ^ keys.first, b ^ keys.second ^ kind * 0x9E3779B97F4A7C15);
  while (!body.empty()) {
    uint64_t word = body.size();  // so that a shorter body is another one
    const size_t take = body.size() < sizeof(word) ? body.size() : sizeof(word);
    if (take < sizeof(word)) word <<= 56;
    std::memcpy(&word, body.data(), take);
    tag = detail::fold(tag ^ word ^ keys.first, keys.second ^ 0xD6E8FEB86659FD93);
    body = body.subspan(take);
  }
  return tag;
}

}  // namespace verbena::protocol::datagram
