#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <cstring>

// The wire between hosts: what goes over its TCP streams.
//
// A process listens on one port of every rail's address: SOFTVERBS_PORT + its slot, and a queue pair's number
// names the slot. Whoever has requests connects; all its queue pairs that lead to one process and rail share
// that link. A link has several streams. Each begins with a Hello in both directions, and where there is a
// job key with a Ready: whoever has not proven that it has the key belongs to no link. Then come frames, a
// header and `length` bytes of payload; with encryption they come in records (crypto/encrypted_stream.h).
// Numbers are little-endian.
//   connecting side:  kRequest (SEND, WRITE, READ, atomics; long ones in several chunks), kDatagram, kAbandon
//   listening side:   kResponse (what READs and atomics return, in chunks), kAcknowledge, kRefusal
// Chunks of a long message take whichever stream has room; a short one stays on its queue pair's home stream.
// Every stream carries chunks in the order in which they were posted, and the responder takes up the messages
// of a queue pair strictly in sequence: it stops reading a stream whose next chunk belongs to a later
// message. The oldest message of all is never held, so this cannot lock up.
// A refusal for "not ready" starts a new round: the requester sends that message and all later ones again,
// the responder drops what is left of the old round. Other refusals end the queue pair. A requester that will
// not send all of a message says kAbandon where its chunk would have been, so that nothing waits for it: the
// responder drops what is left of the round. A later session of
// the same queue pair number (after a reset, or in a new process) starts at sequence 0.
namespace verbena::softverbs::wire {

inline constexpr uint32_t kMagic = 0x57565331;  // also tells the byte order
inline constexpr uint16_t kProtocolVersion = 4;
inline constexpr uint32_t kMaxStreams = 16;
inline constexpr uint32_t kMaxFrameBytes = 1 << 20;
inline constexpr uint32_t kAtomicBytes = 16;  // payload of an atomic request: compare_add, swap
inline constexpr uint32_t kAtomicResult = 8;  // of its response
inline constexpr uint32_t kDatagramBytes = 4096;
inline constexpr size_t kMacBytes = 32, kChallengeBytes = 32;

// What a process demands of its peers; both ends must demand the same.
enum Protection : uint32_t { kOpen = 0, kKeyed, kEncrypted };

struct Hello {
  uint32_t magic;
  uint16_t version;
  uint16_t refusal;                     // in the answer: 0, or why not (Unwelcome)
  uint64_t link;                        // a random number that joins streams
  uint32_t stream;                      // index in the link
  uint32_t streams;                     // of the link
  uint32_t slot;                        // of the process that is called
  uint32_t protection;                  // Protection
  uint8_t source[16], destination[16];  // the rails' addresses as GIDs
  char job[64];
  uint8_t challenge[kChallengeBytes];  // with a key: random, each end's its own
  uint8_t mac[kMacBytes];              // with a key, of the answer
};
static_assert(sizeof(Hello) == 192);

// With a key, the connecting side's answer to the answer.
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

// Why a request was refused.
enum Reason : uint8_t {
  kReceiverNotReady = 1,
  kPeerNotReady,
  kGone,
  kAccessError,
  kInvalidRequest,
  kOperationError
};

// A poisoned request is empty: the responder refuses it, as if its execution had ended with the status in
// `immediate`.
enum FrameFlags : uint16_t { kSolicited = 1, kPoisoned = 2 };

struct Header {
  uint32_t length;  // of the payload behind it
  Kind kind;
  uint8_t code;  // ibv_wr_opcode of a request, Reason of a refusal
  uint16_t flags;
  uint32_t source_qp, target_qp;
  uint64_t session;
  uint64_t sequence;  // of the message; an acknowledgement is for all up to it
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

// Of a request that will not be sent, or not to its end.
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

// Whether a header can come from us at all; nothing of it is used before.
bool is_valid(const Header& header, bool is_from_requester);

}  // namespace verbena::softverbs::wire
