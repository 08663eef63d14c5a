// The protocol between hosts, over TCP streams.
//
// A process listens on one port of every rail's address: SOFTVERBS_PORT + its slot. A queue pair number
// contains the slot. A process that has requests connects to this port. The connection is called a link; all
// queue pairs of the process that lead to the same process and rail share the link. A link has several
// streams, which are TCP connections. Each stream begins with a Hello in both directions. With a job key, a
// Ready follows: a client joins a link only after it has proven that it has the key. Then frames follow. A
// frame is a header and `length` bytes of payload; with encryption, frames are in records
// (crypto/encrypted_stream.h). Numbers are little-endian.
//
//   connecting side: kRequest (SEND, WRITE, READ, atomics; long ones in several chunks), kDatagram, kAbandon
//   listening side:  kResponse (results of READs and atomics, in chunks), kAcknowledge, kRefusal
//
// The chunks of a long message take any stream that has space. A short message stays on its queue pair's
// primary stream. Every stream carries chunks in the order in which they were posted, and the responder
// executes the messages of a queue pair strictly in sequence. The responder stops reading a stream whose next
// chunk belongs to a later message. The oldest message is never held back, so there is no deadlock.
//
// A refusal for "not ready" starts a new round: the requester sends the refused message and all later
// messages again, and the responder drops the rest of the old round. Other refusals end the queue pair. A
// requester that will not send all of a message sends kAbandon in place of the missing chunk. The responder
// then does not wait for the chunk, and drops the rest of the round. A later session of the same queue pair
// number (after a reset, or in a new process) starts at sequence 0. A reset of the responder ends a session
// whose first request it has accepted: the responder refuses all frames of this session with kGone.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <cstring>

namespace verbena::softverbs::wire {

inline constexpr uint32_t kMagic = 0x57565331;  // also shows the byte order
inline constexpr uint16_t kProtocolVersion = 6;
inline constexpr uint32_t kMaxStreams = 16;
inline constexpr uint32_t kMaxFrameBytes = 1 << 20;
inline constexpr uint32_t kAtomicBytes = 16;  // the payload of an atomic request: compare_add, swap
inline constexpr uint32_t kAtomicResult = 8;  // the payload of its response
inline constexpr size_t kMacBytes = 32, kChallengeBytes = 32;

// The protection that a process demands; both ends must demand the same.
enum Protection : uint32_t { kOpen = 0, kKeyed, kEncrypted };

struct Hello {
  uint32_t magic;
  uint16_t version;
  uint16_t refusal;                     // in the answer: 0, or why the client is refused (Unwelcome)
  uint64_t link;                        // random; streams with the same number form a link
  uint32_t stream;                      // index in the link
  uint32_t streams;                     // of the link
  uint32_t slot;                        // of the called process
  uint32_t protection;                  // Protection
  uint8_t source[16], destination[16];  // the rails' addresses as GIDs
  char job[64];
  uint8_t challenge[kChallengeBytes];  // with a key: random, different at each end
  uint8_t mac[kMacBytes];              // with a key, of the answer
};
static_assert(sizeof(Hello) == 192);

// With a key: the connecting side sends this proof after the listening side's answer.
struct Ready {
  uint8_t mac[kMacBytes];
};

enum Unwelcome : uint16_t {
  kWelcome = 0,
  kOtherVersion,
  kOtherJob,
  kOtherProcess,
  kNoSuchLink,
  kKeyMissing,         // at the connecting side
  kKeyUnknown,         // to the listening side
  kEncryptionMissing,  // at the connecting side
  kEncryptionUnknown   // to the listening side
};

enum class Kind : uint8_t { kRequest = 1, kResponse, kAcknowledge, kRefusal, kDatagram, kAbandon };

// The reason why a request was refused.
enum Reason : uint8_t {
  kReceiverNotReady = 1,
  kPeerNotReady,
  kGone,
  kAccessError,
  kInvalidRequest,
  kOperationError
};

// A poisoned request has no payload. The responder refuses it, as if its execution had failed with the status
// in `immediate`.
enum FrameFlags : uint16_t { kSolicited = 1, kPoisoned = 2 };

struct Header {
  uint32_t length;  // of the payload that follows
  Kind kind;
  uint8_t code;  // ibv_wr_opcode of a request, Reason of a refusal
  uint16_t flags;
  uint32_t source_qp, target_qp;
  uint64_t session;
  uint64_t sequence;  // of the message; an acknowledgement covers all messages up to it
  uint32_t round;
  uint32_t immediate;  // or the receiver's RNR timer in a refusal
  uint32_t offset;     // of the payload in the message
  uint32_t bytes;      // of the message
  uint64_t address;    // remote address
  uint32_t key;        // rkey, or a datagram's qkey
  uint32_t reserved;
};
static_assert(sizeof(Header) == 64);

inline bool has_payload(uint8_t opcode) {
  return opcode == IBV_WR_SEND || opcode == IBV_WR_SEND_WITH_IMM || opcode == IBV_WR_RDMA_WRITE ||
         opcode == IBV_WR_RDMA_WRITE_WITH_IMM || opcode == IBV_WR_SEND_WITH_INV ||
         opcode == IBV_WR_ATOMIC_WRITE;
}
inline bool is_atomic_code(uint8_t opcode) {
  return opcode == IBV_WR_ATOMIC_CMP_AND_SWP || opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
}

// Returns the header that abandons a request which will not be sent, or not completely.
inline Header make_abandon(const Header& request) {
  Header header{};
  header.kind = Kind::kAbandon;
  header.source_qp = request.source_qp;
  header.target_qp = request.target_qp;
  header.session = request.session;
  header.sequence = request.sequence;
  header.round = request.round;
  return header;
}

// Returns whether this protocol can send such a header. Call this check before using any field of a header.
bool is_valid(const Header& header, bool is_from_requester);

}  // namespace verbena::softverbs::wire
