// The out-of-band handshake, over TCP, sender to receiver: Hello ->, <- Welcome, Ready ->. And the 128-byte
// handle that NCCL carries from the listener to the connecting side. Every field from outside is checked here
// before anybody uses it.
#pragma once

#include <array>
#include <cstdint>
#include <type_traits>

#include "protocol/wire.h"

namespace verbena::protocol {

inline constexpr uint64_t kMagic = 0x31414E4542524556;  // "VERBENA1" in memory order
inline constexpr uint16_t kProtocolVersion = 9;

// What an end has room for, of one connection. A build may have more than the least, and then goes by what
// its peer has.
struct Limits {
  uint16_t message_ring;  // messages; a power of two
  uint16_t queue_pairs;

  bool operator==(const Limits&) const = default;
};
inline constexpr Limits kMinLimits{32, 8};
inline constexpr Limits kOwnLimits{kMessageRing, kMaxQueuePairs};
// A build that has more must compute the lengths of messages and of the control block from what was agreed.
static_assert(kOwnLimits == kMinLimits);

struct HandshakeHeader {
  uint64_t magic;
  uint16_t version;
  uint16_t length_bytes;  // of the whole message, header included
  Limits limits;          // of a handle: the listener's; else the connection's, the smaller of both ends'
  uint64_t nonce;         // of the listener: a connection that does not know it is not ours
};

// Where a rail is reached: the verbs layer's PortAddress, opaque here.
struct RailRecord {
  uint8_t bytes[40];
};

// The verbs layer's EceOptions, opaque here.
struct EceRecord {
  uint8_t bytes[12];
};

struct QueuePairRecord {
  uint32_t number;
  uint32_t first_psn;
  EceRecord ece;
};

// The listener's address, as base::SocketAddress lays it out: family 4 or 6, port in host byte order, address
// raw.
struct AddressRecord {
  uint16_t family;
  uint16_t port;
  uint32_t scope_id;
  uint8_t address[16];
};

// Random, drawn once in each process: connections between the same two share a control socket.
using ProcessId = std::array<uint8_t, 16>;

struct Handle {
  HandshakeHeader header;
  AddressRecord address;
  uint32_t rails;
  uint32_t queue_pairs_per_rail;
  ProcessId process;      // the listener's
  uint32_t out_of_order;  // 1: its queue pairs may take messages out of order (ReceiveOptions)
  uint8_t reserved[28];
  uint64_t checksum;  // of all bytes before it: tells a truncated handle
};
static_assert(sizeof(Handle) <= 128);

// Where both ends have the job's key: a random number that the other end's MAC must cover, and the MAC of the
// message (transport/handshake_auth.h says of what else). Zero without a key.
inline constexpr uint32_t kChallengeBytes = 32, kMacBytes = 32;

struct Proof {
  uint8_t challenge[kChallengeBytes];
  uint8_t mac[kMacBytes];
};

// Here and in the Welcome: where kMaxQueuePairs stands, the connection's limit.
struct Hello {
  HandshakeHeader header;
  uint32_t rails;
  uint32_t queue_pairs;  // pair q is on rail q mod rails
  RailRecord rail[kMaxRails];
  QueuePairRecord queue_pair[kMaxQueuePairs];
  uint64_t control_address;          // of the sender's ControlBlock
  uint32_t control_keys[kMaxRails];  // one for each of the sender's rails
  int32_t traffic_class;             // of the sender's communicator; -1: it asked for none
  uint16_t is_keyed;                 // 1: `proof` is one
  uint16_t out_of_order;             // 1: the queue pairs are, as the handle allowed: at both ends or at none
  ProcessId process;                 // the sender's
  Proof proof;                       // the last field: its MAC covers all before the MAC
};

enum class Refusal : uint32_t {
  kNone = 0,
  kVersion = 1,
  kMalformed = 2,
  kResources = 3,
  kUnreachable = 4,  // `rails` and `rail` are valid: the sender can say why too
  kKeyMissing = 5,   // the receiver has a job key and the sender has none
  kKeyUnknown = 6,   // the other way round
  kKeyWrong = 7,     // both have one, and not the same
};

struct Welcome {
  HandshakeHeader header;
  uint32_t refusal;  // Refusal; everything below counts only if it is kNone
  uint32_t rails;
  uint32_t queue_pairs;  // at most as many as the Hello offered
  uint32_t page_bytes;
  RailRecord rail[kMaxRails];
  QueuePairRecord queue_pair[kMaxQueuePairs];
  uint8_t origin[kMaxQueuePairs];    // which of the Hello's queue pairs each one answers; rising
  uint8_t rail_of[kMaxQueuePairs];   // which of the receiver's rails each one is on
  uint32_t window[kMaxQueuePairs];   // receive entries for each queue pair
  uint64_t staging_threshold_bytes;  // messages up to this size may be staged
  uint32_t staging;                  // 0: all are direct, and meet by tag (wire.h)
  uint32_t
      joined_pairs;   // a bit for each that the receiver has joined; the connection begins without the others
  ProcessId process;  // the receiver's, as in its handle
  uint64_t id;        // of this handshake: random, not 0; its connection's and its socket's name
  uint64_t offered;   // the control socket to go on with, by the handshake that made it; 0: none
  uint32_t speed_mbps[kMaxRails];  // of the receiver's rails; 0: unknown
  Proof proof;                     // not of a refusal
};

struct Ready {
  HandshakeHeader header;
  uint64_t
      accepts_offer;  // 1: the connection goes on over the socket that was offered, and this one is closed
  uint8_t mac[kMacBytes];
};

// What a MAC covers has no byte that nobody sets.
static_assert(std::has_unique_object_representations_v<Hello> &&
              std::has_unique_object_representations_v<Welcome> &&
              std::has_unique_object_representations_v<Ready>);

enum class HandshakeError : uint8_t { kNone, kForeign, kVersion, kMalformed, kNonce };

const char* describe(HandshakeError error);

// Of a connection to a peer that has these.
Limits agree(const Limits& peer);
HandshakeHeader make_header(uint16_t length_bytes, uint64_t nonce, const Limits& limits = kOwnLimits);
// Of any message but the handle.
HandshakeError check_header(const HandshakeHeader& header, uint16_t expected_length_bytes,
                            uint64_t expected_nonce);

// For the 128 bytes that NCCL carries. The nonce is the handle's own.
void seal_handle(Handle& handle, uint64_t nonce, const Limits& limits = kOwnLimits);
HandshakeError check_handle(const Handle& handle);
HandshakeError check_hello(const Hello& hello, uint64_t nonce, uint32_t local_rails,
                           uint32_t local_queue_pairs_per_rail);
// `offered`: the queue pairs of our Hello.
HandshakeError check_welcome(const Welcome& welcome, uint64_t nonce, uint32_t offered);
// Nor may it accept what was not offered.
HandshakeError check_ready(const Ready& ready, uint64_t nonce, bool was_offered);

// How many queue pairs a connection has; both ends compute it from both ends' numbers.
uint32_t count_queue_pairs(uint32_t rails_a, uint32_t per_rail_a, uint32_t rails_b, uint32_t per_rail_b);

}  // namespace verbena::protocol
