// How two engines get to know each other: the handle that NCCL passes from a listener to the connecting side,
// and the greetings that then go over the network. A hello opens a channel. A welcome accepts it, or says why
// not. Each greeting contains everything about its sender, so that any of them may be lost, duplicated or
// delayed. A farewell reports or asks whether an end of a channel is closed. Every field from outside is
// checked here before it is used.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <type_traits>

#include "protocol/datagram/packet.h"
#include "protocol/datagram/page_budget.h"
#include "protocol/handshake.h"

namespace verbena::protocol::datagram {

inline constexpr uint64_t kDatagramMagic = 0x44414E4542524556;  // "VERBENAD" in memory order
inline constexpr uint16_t kDatagramVersion = 7;
inline constexpr uint32_t kGrantedPairs = 4;  // queue pairs of a rail for granted packets
inline constexpr uint32_t kGreetingMacBytes = 16;

// Lines of NCCL's LL128. The last 8 bytes of a line show that the rest has arrived, so no line is split
// between two packets.
inline constexpr uint32_t kDataLineBytes = 128, kMostDataLines = 1024;

// Drawn once in each engine. A process that has seen an engine's handle knows its secret.
using EngineSecret = std::array<uint8_t, 16>;

// The address of an engine on a rail.
struct EngineRail {
  RailRecord port;
  uint32_t control, eager;  // numbers of its queue pairs
  // The last one is for short messages without a grant, if there are small-message buffers.
  std::array<uint32_t, kGrantedPairs> granted;
};
static_assert(sizeof(EngineRail) == 64, "wire format");

struct EngineName {
  uint64_t id;  // derived from the fields below, not 0: see make_engine_id()
  EngineSecret secret;
  uint32_t queue_key;
  uint16_t data_lines;  // maximum length of a message's part in a packet
  uint8_t rails;
  uint8_t is_keyed : 1;  // the engine has the job's key
  uint8_t has_short_pages : 1;
  uint8_t reserved : 6;

  bool operator==(const EngineName&) const = default;
  uint32_t data_bytes() const { return data_lines * kDataLineBytes; }
  uint32_t granted_pairs() const { return kGrantedPairs - has_short_pages; }
};
static_assert(sizeof(EngineName) == 32, "wire format");

// A process, for other processes of its host, which can see whether it has ended.
struct ProcessName {
  uint64_t space;  // of the host and its process numbers; 0 if unknown
  uint64_t start_ticks;
  uint32_t pid, reserved;
  bool operator==(const ProcessName&) const = default;
};
static_assert(sizeof(ProcessName) == 24, "wire format");

// The magic is at the same offset as in the handle of the connected transport.
struct DatagramHandle {
  uint64_t magic;
  uint16_t version;
  uint16_t length_bytes;
  uint32_t control;  // queue pair on the rail
  uint64_t nonce;    // of the listener
  EngineName engine;
  RailRecord port;      // of one rail
  ProcessName process;  // of the listener
  uint64_t checksum;
};
static_assert(sizeof(DatagramHandle) == 128);

inline bool is_datagram_handle(const void* handle) {
  uint64_t magic = 0;
  std::memcpy(&magic, handle, sizeof(magic));
  return magic == kDatagramMagic;
}
void seal_handle(DatagramHandle& handle);
HandshakeError check_handle(const DatagramHandle& handle);

enum class GreetingRefusal : uint16_t {
  kNone,
  kNobodyListens,
  kKeyMissing,  // the listener has a job key and the client has none
  kKeyUnknown,  // the reverse
  kUnreachable,
  kFailed,  // this end has failed; its log gives the reason
};
const char* describe(GreetingRefusal refusal);

// The body of a hello or a welcome, after the header. `rail` has as many entries as there are rails. The MAC
// follows directly; it covers all earlier bytes, with the header.
struct Greeting {
  uint16_t version;
  GreetingRefusal refusal;  // in a welcome
  uint16_t slot;            // the slot by which the sender knows the other end
  uint16_t channel;         // the client's number of the channel
  uint64_t nonce;           // of the listener
  uint64_t other_id;        // of the receiving engine
  EngineName engine;        // of the sender
  ProcessName process;
  std::array<EngineRail, kMaxEngineRails> rail;
  std::array<uint8_t, kGreetingMacBytes> mac;  // at this offset if all rails are present

  static constexpr uint32_t kFixedBytes = 80;
  uint32_t covered_bytes() const { return kFixedBytes + engine.rails * uint32_t{sizeof(EngineRail)}; }
};
static_assert(offsetof(Greeting, rail) == Greeting::kFixedBytes, "wire format");
static_assert(std::has_unique_object_representations_v<Greeting>);

inline constexpr uint32_t kMaxGreetingBytes = sizeof(PacketHeader) + sizeof(Greeting);

// Returns a received greeting if its length is right and its fields are consistent; the MAC is not checked.
// Otherwise returns an empty value.
std::optional<Greeting> read_greeting(std::span<const uint8_t> bytes);

enum class FarewellKind : uint8_t {
  kClosed,    // the sender has closed this end; kNoChannel: all its ends
  kQuestion,  // asks whether the receiver has closed this end
  kTooLong,   // this end of the sender has failed, because a message is longer than its receive
};
struct Farewell {
  uint16_t channel;
  uint8_t of_sender;  // 1: about the end that sends messages, 0: the end that receives them
  FarewellKind kind;
};
static_assert(sizeof(Farewell) == 4, "wire format");

// The body of a reset that is about another process.
struct LifeRecord {
  ProcessName process;
  uint32_t is_question;  // 1: has the process ended? 0: it has
  uint32_t reserved;
};
static_assert(sizeof(LifeRecord) == 32, "wire format");

}  // namespace verbena::protocol::datagram
