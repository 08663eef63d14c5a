// The handshake over TCP between sender and receiver: Hello (connect request) ->, <- Welcome (accept), Ready
// ->. Also the 128-byte handle that NCCL passes from the listener to the connecting side. Every field from
// outside is checked here before it is used.
#pragma once

#include <array>
#include <cstdint>
#include <type_traits>

#include "protocol/wire.h"

namespace verbena::protocol {

inline constexpr uint64_t kMagic = 0x31414E4542524556;  // "VERBENA1" in memory order
inline constexpr uint16_t kProtocolVersion = 9;

// The capacity of one end for one connection. A build may have a larger capacity than the minimum, and uses
// the smaller capacity of both ends.
struct Limits {
  uint16_t message_ring;  // number of messages; a power of two
  uint16_t queue_pairs;

  bool operator==(const Limits&) const = default;
};
inline constexpr Limits kMinLimits{32, 8};
inline constexpr Limits kOwnLimits{kMessageRing, kMaxQueuePairs};
// A build with a larger capacity must compute the lengths of messages and of the control block from the
// agreed limits.
static_assert(kOwnLimits == kMinLimits);

struct HandshakeHeader {
  uint64_t magic;
  uint16_t version;
  uint16_t length_bytes;  // of the whole message, with the header
  Limits limits;   // in a handle: the listener's; otherwise the connection's, the smaller of both ends'
  uint64_t nonce;  // of the listener; a connection without it is rejected
};

// The address of a rail: the verbs layer's PortAddress, opaque here.
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

// The listener's address, with the layout of base::SocketAddress: family 4 or 6, port in host byte order, raw
// address.
struct AddressRecord {
  uint16_t family;
  uint16_t port;
  uint32_t scope_id;
  uint8_t address[16];
};

// A random number, drawn once in each process. Connections between the same two processes share a control
// socket.
using ProcessId = std::array<uint8_t, 16>;

struct Handle {
  HandshakeHeader header;
  AddressRecord address;
  uint32_t rails;
  uint32_t queue_pairs_per_rail;
  ProcessId process;      // of the listener
  uint32_t out_of_order;  // 1: queue pairs may receive out of order (ReceiveOptions)
  uint8_t reserved[28];
  uint64_t checksum;  // of all earlier bytes; detects a truncated handle
};
static_assert(sizeof(Handle) <= 128);

// With a job key: a random number that the other end's MAC must cover, and the MAC of the message
// (transport/handshake_auth.h lists the data that it covers). Zero without a key.
inline constexpr uint32_t kChallengeBytes = 32, kMacBytes = 32;

struct Proof {
  uint8_t challenge[kChallengeBytes];
  uint8_t mac[kMacBytes];
};

// In Hello and Welcome, the arrays have the connection's limit instead of kMaxQueuePairs.
struct Hello {
  HandshakeHeader header;
  uint32_t rails;
  uint32_t queue_pairs;  // pair q is on rail q mod rails
  RailRecord rail[kMaxRails];
  QueuePairRecord queue_pair[kMaxQueuePairs];
  uint64_t control_address;          // of the sender's ControlBlock
  uint32_t control_keys[kMaxRails];  // one for each rail of the sender
  int32_t traffic_class;             // of the sender's communicator; -1: not set
  uint16_t is_keyed;                 // 1: `proof` is valid
  uint16_t out_of_order;  // 1: queue pairs receive out of order, as the handle allowed; the same at both ends
  ProcessId process;      // of the sender
  Proof proof;            // last field: its MAC covers all bytes before the MAC
};

enum class Refusal : uint32_t {
  kNone = 0,
  kVersion = 1,
  kMalformed = 2,
  kResources = 3,
  kUnreachable = 4,  // `rails` and `rail` are valid, so that the sender can explain it too
  kKeyMissing = 5,   // the receiver has a job key and the sender has none
  kKeyUnknown = 6,   // the reverse
  kKeyWrong = 7,     // the keys of both ends differ
};

struct Welcome {
  HandshakeHeader header;
  uint32_t refusal;  // Refusal; the fields below are valid only for kNone
  uint32_t rails;
  uint32_t queue_pairs;  // at most the number in the Hello
  uint32_t page_bytes;
  RailRecord rail[kMaxRails];
  QueuePairRecord queue_pair[kMaxQueuePairs];
  uint8_t origin[kMaxQueuePairs];    // the Hello's queue pair to which each one belongs; increasing
  uint8_t rail_of[kMaxQueuePairs];   // the receiver's rail of each queue pair
  uint32_t window[kMaxQueuePairs];   // receive entries for each queue pair
  uint64_t staging_threshold_bytes;  // messages up to this size may be staged
  uint32_t staging;                  // 0: all messages are direct, and matched by tag (wire.h)
  // A bit for each queue pair that the receiver has connected. The connection begins with these.
  uint32_t joined_pairs;
  ProcessId process;               // of the receiver, as in its handle
  uint64_t id;                     // id of this handshake, its connection and its socket: random, not 0
  uint64_t offered;                // id of the control socket that the receiver offers; 0: none
  uint32_t speed_mbps[kMaxRails];  // of each rail of the receiver; 0: unknown
  Proof proof;                     // not in a refusal
};

struct Ready {
  HandshakeHeader header;
  uint64_t accepts_offer;  // 1: the connection uses the offered socket, and this one is closed
  uint8_t mac[kMacBytes];
};

// A message with a MAC must have no padding bytes, because these would not be set.
static_assert(std::has_unique_object_representations_v<Hello> &&
              std::has_unique_object_representations_v<Welcome> &&
              std::has_unique_object_representations_v<Ready>);

enum class HandshakeError : uint8_t { kNone, kForeign, kVersion, kMalformed, kNonce };

const char* describe(HandshakeError error);

// Returns the limits of a connection to a peer with limits `peer`.
Limits agree(const Limits& peer);
HandshakeHeader make_header(uint16_t length_bytes, uint64_t nonce, const Limits& limits = kOwnLimits);
// Checks the header of any message except the handle.
HandshakeError check_header(const HandshakeHeader& header, uint16_t expected_length_bytes,
                            uint64_t expected_nonce);

// For the 128 bytes of the handle. The nonce is the handle's own.
void seal_handle(Handle& handle, uint64_t nonce, const Limits& limits = kOwnLimits);
HandshakeError check_handle(const Handle& handle);
HandshakeError check_hello(const Hello& hello, uint64_t nonce, uint32_t local_rails,
                           uint32_t local_queue_pairs_per_rail);
// `offered` is the number of queue pairs in this end's Hello.
HandshakeError check_welcome(const Welcome& welcome, uint64_t nonce, uint32_t offered);
// Also rejects a message that accepts a socket which was not offered.
HandshakeError check_ready(const Ready& ready, uint64_t nonce, bool was_offered);

// Returns the number of queue pairs of a connection. Both ends compute it from the numbers of both ends.
uint32_t count_queue_pairs(uint32_t rails_a, uint32_t per_rail_a, uint32_t rails_b, uint32_t per_rail_b);

}  // namespace verbena::protocol
