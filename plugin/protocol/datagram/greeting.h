// How two engines come to know each other: the handle that NCCL carries from a listener to whoever connects,
// and the greetings that then go over the network. A hello opens a channel, a welcome answers it or says why
// not; each tells everything about its sender, so that any of them may be lost, doubled or late. A farewell
// says, or asks, whether an end of a channel is closed. Every field from outside is checked here before
// anybody uses it.
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

// Lines of NCCL's LL128, the last 8 bytes of which say that the rest is there: none lies in two packets.
inline constexpr uint32_t kDataLineBytes = 128, kMostDataLines = 1024;

// Drawn once in each engine: who has seen an engine's handle knows its secret.
using EngineSecret = std::array<uint8_t, 16>;

// Where an engine is reached on a rail.
struct EngineRail {
  RailRecord port;
  uint32_t control, eager;  // numbers of its queue pairs
  // The last is for short messages that are not granted, where there are short pages.
  std::array<uint32_t, kGrantedPairs> granted;
};
static_assert(sizeof(EngineRail) == 64, "wire format");

struct EngineName {
  uint64_t id;  // of all that follows, not 0: see make_engine_id()
  EngineSecret secret;
  uint32_t queue_key;
  uint16_t data_lines;  // of a message in a packet, at most
  uint8_t rails;
  uint8_t is_keyed : 1;  // it has the job's key
  uint8_t has_short_pages : 1;
  uint8_t reserved : 6;

  bool operator==(const EngineName&) const = default;
  uint32_t data_bytes() const { return data_lines * kDataLineBytes; }
  uint32_t granted_pairs() const { return kGrantedPairs - has_short_pages; }
};
static_assert(sizeof(EngineName) == 32, "wire format");

// A process, for others of its host, which see whether it has ended.
struct ProcessName {
  uint64_t space;  // of the host and its process numbers; 0: not known
  uint64_t start_ticks;
  uint32_t pid, reserved;
  bool operator==(const ProcessName&) const = default;
};
static_assert(sizeof(ProcessName) == 24, "wire format");

// The magic is where a connected listener's handle has its own.
struct DatagramHandle {
  uint64_t magic;
  uint16_t version;
  uint16_t length_bytes;
  uint32_t control;  // queue pair on the rail
  uint64_t nonce;    // of the listener
  EngineName engine;
  RailRecord port;      // of one rail
  ProcessName process;  // the listener's
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
  kKeyMissing,  // the listener has a job key and the caller has none
  kKeyUnknown,  // the other way round
  kUnreachable,
  kFailed,  // this end, for a reason in its log
};
const char* describe(GreetingRefusal refusal);

// Of a hello and of a welcome; behind the header. `rail` is sent as far as there are rails, the MAC right
// behind it: of all before, the header too.
struct Greeting {
  uint16_t version;
  GreetingRefusal refusal;  // of a welcome
  uint16_t slot;            // by which its sender knows the other end
  uint16_t channel;         // by which the caller calls it
  uint64_t nonce;           // of the listener
  uint64_t other_id;        // of the engine that it is for
  EngineName engine;        // its sender's
  ProcessName process;
  std::array<EngineRail, kMaxEngineRails> rail;
  std::array<uint8_t, kGreetingMacBytes> mac;  // where all rails are there

  static constexpr uint32_t kFixedBytes = 80;
  uint32_t covered_bytes() const { return kFixedBytes + engine.rails * uint32_t{sizeof(EngineRail)}; }
};
static_assert(offsetof(Greeting, rail) == Greeting::kFixedBytes, "wire format");
static_assert(std::has_unique_object_representations_v<Greeting>);

inline constexpr uint32_t kMaxGreetingBytes = sizeof(PacketHeader) + sizeof(Greeting);

// A greeting as it came, of its length and without contradiction; its MAC is not looked at but for its place.
// Empty: it makes no sense.
std::optional<Greeting> read_greeting(std::span<const uint8_t> bytes);

enum class FarewellKind : uint8_t {
  kClosed,    // that end, which is its sender's; kNoChannel: its sender has closed everything
  kQuestion,  // is that end, which is the other's, closed?
  kTooLong,   // that end, its sender's, has failed: a message is longer than its receive
};
struct Farewell {
  uint16_t channel;
  uint8_t of_sender;  // 1: it is about the end that sends messages, 0: the one that receives them
  FarewellKind kind;
};
static_assert(sizeof(Farewell) == 4, "wire format");

// The body of a reset that is not about its sender.
struct LifeRecord {
  ProcessName process;
  uint32_t is_question;  // 1: has it ended? 0: it has
  uint32_t reserved;
};
static_assert(sizeof(LifeRecord) == 32, "wire format");

}  // namespace verbena::protocol::datagram
