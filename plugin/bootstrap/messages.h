// The bootstrap's messages over TCP. Both ends of a connection introduce themselves; then frames follow in
// both directions. All of these data may come from outside, and are checked before use.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "base/hmac.h"
#include "base/socket_address.h"
#include "base/status.h"

namespace verbena::bootstrap {

inline constexpr uint64_t kMagic = 0x746f'6f62'6272'6576;  // "verbboot"
inline constexpr uint32_t kVersion = 3;
inline constexpr uint32_t kMaxRanks = 65536;
inline constexpr uint64_t kMaxFrameBytes = uint64_t{1} << 30;

using Nonce = std::array<uint8_t, 32>;

enum class Purpose : uint8_t {
  kRegister = 1,  // to the rendezvous: registers this rank
  kTree = 2,      // to the parent, for as long as the bootstrap lives
  kRecords = 3,   // to a one-sided endpoint's peer, once a rail has failed
  kPairs = 4,     // to another rank, for messages between the two
};

// The key of the MACs.
enum class KeyKind : uint8_t {
  kNone,
  kJob,  // of VERBENA_JOB_KEY_FILE
  kId,   // the secret of the unique id
};

enum class Refusal : uint8_t {
  kNone,
  kOtherVersion,
  kOtherJob,    // another nonce, or another secret of the unique id
  kKeyMissing,  // the caller has no job key
  kKeyUnknown,  // the caller has a job key and this rank has none
  kKeyWrong,
  kOtherCount,  // another number of ranks
  kRankTaken,   // another process has joined as this rank
  kUnexpected,  // the rank does not exist, or is not expected here
};

// The listening end's first message. Its random value prevents the replay of a hello from an earlier
// connection.
struct Challenge {
  uint64_t magic = kMagic;
  uint32_t version = kVersion;
  uint32_t reserved = 0;
  Nonce random{};  // different in each connection
};
static_assert(sizeof(Challenge) == 48 && std::is_trivially_copyable_v<Challenge>);

// The connecting end's first message.
struct Hello {
  uint64_t magic = kMagic;
  uint32_t version = kVersion;
  Purpose purpose = Purpose::kRegister;
  KeyKind key = KeyKind::kNone;
  uint16_t reserved = 0;
  uint32_t rank = 0;
  uint32_t count_ranks = 0;
  Nonce nonce{};
  Nonce challenge{};  // random, different in each connection
  base::Mac mac{};    // over the listener's challenge and all fields above; zero without a key
};
static_assert(sizeof(Hello) == 120 && std::is_trivially_copyable_v<Hello>);

// The answer.
struct Welcome {
  uint64_t magic = kMagic;
  uint32_t version = kVersion;
  Refusal refusal = Refusal::kNone;
  uint8_t reserved[3] = {};
  uint32_t detail = 0;  // for kOtherCount: the number of ranks
  uint32_t reserved_too = 0;
  base::Mac mac{};  // over both messages before it and all fields above
};
static_assert(sizeof(Welcome) == 56 && std::is_trivially_copyable_v<Welcome>);

enum class FrameKind : uint8_t {
  kReady = 1,     // the connecting end's first frame: it has read the welcome
  kRegistration,  // to the rendezvous: a Registration
  kParent,        // from the rendezvous: the parent's SocketAddress
  kContribution,  // up the tree: the contribution of `rank` to a collective call
  kResult,        // down the tree: for `rank`, or for kEveryone
  kOverdue,       // up the tree: the sender's deadline has passed; asks which ranks are missing
  kFailure,       // in both directions: a FailureNote; the bootstrap is over
  kGoodbye,       // the sender leaves in order
  kLaneRecord,    // between one-sided endpoints
  kPairPart,      // between two ranks: a part of a message
};

enum class Operation : uint8_t { kJoin = 1, kBarrier, kAllGather, kExchange, kAgree };
inline constexpr uint32_t kEveryone = ~uint32_t{0};

struct FrameHeader {
  FrameKind kind = FrameKind::kReady;
  Operation operation = Operation::kJoin;
  uint16_t reserved = 0;
  uint32_t rank = 0;
  uint32_t sequence = 0;  // of the collective call
  uint32_t reserved_too = 0;
  uint64_t length_bytes =
      0;  // of the payload that follows, at most kMaxFrameBytes; then the MAC, if there is a key
};
static_assert(sizeof(FrameHeader) == 24 && std::is_trivially_copyable_v<FrameHeader>);

struct Registration {
  base::SocketAddress address;  // where this rank listens for its children; none if it has none
  uint32_t parent = 0;          // the rank whose address it wants; unused in rank 0
  uint32_t reserved = 0;
};
static_assert(sizeof(Registration) == 32);

// A header and its payload in one piece; shared by all connections that send it.
using Record = std::shared_ptr<const std::vector<uint8_t>>;

using base::as_bytes;

// The payload is the parts, one after the other.
inline Record make_record(FrameHeader header, std::initializer_list<base::Bytes> parts = {}) {
  header.length_bytes = 0;
  for (const base::Bytes part : parts) header.length_bytes += part.size();
  auto record = std::make_shared<std::vector<uint8_t>>();
  record->reserve(sizeof(header) + header.length_bytes);
  const base::Bytes head = as_bytes(&header, sizeof(header));
  record->insert(record->end(), head.begin(), head.end());
  for (const base::Bytes part : parts) record->insert(record->end(), part.begin(), part.end());
  return record;
}

inline FrameHeader header_of(const Record& record) {
  FrameHeader header;
  std::memcpy(&header, record->data(), sizeof(header));
  return header;
}

inline base::Bytes payload_of(const Record& record) {
  return base::Bytes(*record).subspan(sizeof(FrameHeader));
}

// The reason why a bootstrap is over, as the ranks send it to each other.
struct FailureNote {
  base::Error error;
  std::string text;
};

// Truncates long texts.
Record make_failure(const FailureNote& note);
// The note comes from outside, so an invalid status becomes kRemote, and only printable characters of the
// text are kept.
FailureNote read_failure(const Record& record);

// Returns a text such as `rank 5`, `ranks 1, 3 and 4`, or `ranks 1, 5 to 7 and 12 others`: ascending, and
// short enough for a log line.
std::string show_ranks(std::span<const uint32_t> ranks);

}  // namespace verbena::bootstrap
