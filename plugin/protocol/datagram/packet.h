// The format of a datagram. Little endian, except for the immediate, which is in network order as in verbs.
//
// The immediate is in the completion, so that the peer and the kind are known before any memory is read:
//
//   bits 0..15  slot: the receiver's index of this peer; kStrangerSlot before it has sent its index
//   16..20 path  21 last packet of its message  22 acknowledge at once  23 retransmission
//   24..26 kind  27..31 low bits of the slot's generation
//
// A data packet has the header (24 bytes), and as much of the message as both engines support (EngineName).
// The header is received into a line of host memory, and the data at the beginning of a page. Every other
// packet has the header and a body.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <span>

namespace verbena::protocol::datagram {

inline constexpr uint32_t kPaths = 32;
inline constexpr uint16_t kStrangerSlot = 0xFFFF;
inline constexpr uint16_t kNoChannel = 0xFFFF;  // the message was given up: only the packet's number is used
inline constexpr uint32_t kMessageNumbers = 2048;  // a packet contains its message number modulo this
inline constexpr uint32_t kPacketIndexBits = 21;
inline constexpr uint32_t kMaxPacketIndex =
    1U << kPacketIndexBits;  // maximum number of packets of a message: a grant contains their number
inline constexpr uint32_t kSpan = 1984;  // maximum distance of packets from the oldest unacknowledged one
inline constexpr uint32_t kSlicePackets = 256;   // packets covered by one acknowledgement
inline constexpr uint32_t kEagerSpan = 32;       // the same for eager packets, which are numbered separately
inline constexpr uint32_t kMaxGrantsPerAck = 3;  // 104 bytes in all, which many devices send inline
inline constexpr uint32_t kMaxWishesPerRequest = 16;
// Length of a message that uses a small-message buffer (page_budget.h), if the receiver has them.
inline constexpr uint32_t kShortBytes = 16384;

// In units of 64 ns of a process's clock; wraps after 275 s.
using Stamp = uint32_t;
inline constexpr int64_t kStampNs = 64;
inline Stamp make_stamp(int64_t now_ns) {
  return static_cast<Stamp>(static_cast<uint64_t>(now_ns) / kStampNs);
}

enum class PacketKind : uint8_t {
  kGranted,  // data with a grant
  kEager,    // data without a grant
  kAck,
  kHello,
  kWelcome,
  kRequest,  // messages that wait for a grant; without messages: a test whether the peer is alive
  kClose,    // of a channel
  kReset,    // the sender has given up this peer; with a body: about a process that has ended
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

// The number of a message in its channel, and of a packet in its message.
struct Place {
  uint16_t message = 0;  // modulo kMessageNumbers
  uint32_t index = 0;

  uint32_t encode() const { return uint32_t{message} << kPacketIndexBits | index; }
  static Place decode(uint32_t bits) {
    return {static_cast<uint16_t>(bits >> kPacketIndexBits), bits & (kMaxPacketIndex - 1)};
  }
};

struct PacketHeader {
  uint64_t tag;
  uint32_t
      psn;  // of an eager packet: its eager number; of an acknowledgement: all earlier packets have arrived
  uint32_t place;    // of an acknowledgement: the beginning of its slice
  uint16_t channel;  // the sender's number of the channel
  uint16_t backlog;  // number of packets of the message after this one, at most 65535
  Stamp time;        // when it was sent, by the sender's clock
};
static_assert(sizeof(PacketHeader) == 24, "wire format");

// Contains state and no events, so an acknowledgement may be lost, duplicated or delayed.
struct AckBody {
  std::array<uint64_t, kSlicePackets / 64> received;
  Stamp echo;           // time of the newest packet
  uint16_t hold;        // time since it arrived, in units of 64 ns; kNoSample: no new packet has arrived
  uint16_t duplicates;  // number of duplicates so far
  // A bit for each path on which a delayed packet has arrived since the last acknowledgement.
  uint32_t late_paths;
  uint32_t eager_limit;       // total number of eager packets that may have been sent
  uint32_t eager_cumulative;  // all eager packets before this have arrived
  uint32_t eager_received;    // a bit for each eager packet from eager_cumulative on
};
static_assert(sizeof(AckBody) == 56, "wire format");
inline constexpr uint16_t kNoSample = 0xFFFF;

// Grants this message up to, but not including, this index.
struct GrantRecord {
  uint16_t channel;
  uint16_t reserved;
  uint32_t place;
};
static_assert(sizeof(GrantRecord) == 8, "wire format");

// A message that waits for a grant, and its number of packets.
struct Wish {
  uint16_t channel;
  uint16_t message;
  uint32_t packets;
};
static_assert(sizeof(Wish) == 8, "wire format");

// The longest packet without data: an acknowledgement with the maximum number of grants, or a request.
inline constexpr uint32_t kMaxControlBytes = sizeof(PacketHeader) + kMaxWishesPerRequest * sizeof(Wish);
static_assert(sizeof(PacketHeader) + sizeof(AckBody) + kMaxGrantsPerAck * sizeof(GrantRecord) <=
              kMaxControlBytes);

// The keys of one direction between two peers.
struct TagKeys {
  uint64_t first = 0, second = 0;
};

namespace detail {
// Multiplies 64 by 64 bits, and combines the halves: every bit of both factors affects every bit of the
// result.
inline uint64_t fold(uint64_t a, uint64_t b) {
  const __uint128_t product = static_cast<__uint128_t>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}
}  // namespace detail

// The tag rejects packets from a process that cannot read the network traffic, from an earlier process, and
// for another receiver. It also rejects packets with a damaged header and, without data, with a damaged body.
// A process that can read the traffic can compute a tag. The path and the request for an acknowledgement are
// hints, and not covered.
inline uint64_t make_tag(const TagKeys& keys, const PacketHeader& header, const Immediate& immediate,
                         std::span<const uint8_t> body = {}) {
  const uint64_t a = uint64_t{header.psn} | uint64_t{header.place} << 32;
  const uint64_t b = uint64_t{header.channel} | uint64_t{header.backlog} << 16 | uint64_t{header.time} << 32;
  const uint64_t kind = static_cast<uint64_t>(immediate.kind) << 1 | uint64_t{immediate.is_last};
  uint64_t tag = detail::fold(a ^ keys.first, b ^ keys.second ^ kind * 0x9E3779B97F4A7C15);
  while (!body.empty()) {
    uint64_t word = body.size();  // so that a shorter body has another tag
    const size_t take = body.size() < sizeof(word) ? body.size() : sizeof(word);
    if (take < sizeof(word)) word <<= 56;
    std::memcpy(&word, body.data(), take);
    tag = detail::fold(tag ^ word ^ keys.first, keys.second ^ 0xD6E8FEB86659FD93);
    body = body.subspan(take);
  }
  return tag;
}

}  // namespace verbena::protocol::datagram
