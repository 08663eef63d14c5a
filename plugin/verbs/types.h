// The types of the verbs layer, without <infiniband/verbs.h>: the layers above do not use verbs structures.
#pragma once

#include <endian.h>

#include <cstdint>

namespace verbena::verbs {

inline constexpr int kMaxRails = 8;  // physical ports that one virtual device may join (NCCL net v12)
inline constexpr uint32_t kInlineBytes =
    64;  // inline bytes requested for a queue pair; some devices grant less

// The address of a port, which travels in the handshake. In host byte order (x86-64 and arm64 are little
// endian), except for GIDs, which are raw.
struct PortAddress {
  uint8_t gid[16];
  uint8_t other_gid[16];   // of the other address family, same RoCE version; zero if none
  uint16_t lid;            // 0 on Ethernet
  uint16_t partition_key;  // 0: unknown
  uint8_t port_number;     // the peer's own number; for information, never used as a local port number
  uint8_t link_layer;      // 1 InfiniBand, 2 Ethernet, 0: the port cannot be used now
  uint8_t mtu;             // enum ibv_mtu of the active port: 1 (256) .. 5 (4096)
  uint8_t roce_version;    // 1 or 2; 0: unknown, or InfiniBand
};
static_assert(sizeof(PortAddress) == 40);

inline constexpr uint8_t kInfiniBand = 1, kEthernet = 2;  // PortAddress::link_layer

// A port's address for local use: with the indices of its GIDs in its table.
struct LocalAddress {
  PortAddress port{};
  int gid_index = -1;        // -1 on InfiniBand without GRH
  int other_gid_index = -1;  // -1 if there is no other GID
  bool is_own = true;        // see GidEntry; true if not determined
  int partition_key_index = 0;
};

// The place of a port in the network, as numbered by the administrator.
struct PortPlace {
  static constexpr int16_t kUnknown = -1;
  int16_t rail = kUnknown, plane = kUnknown;

  bool operator==(const PortPlace&) const = default;
};

// Enhanced connection establishment (ECE): vendor options on which both ends agree. vendor_id 0 means none.
struct EceOptions {
  uint32_t vendor_id;
  uint32_t options;
  uint32_t mask;
};

struct QueuePairAddress {
  uint32_t number;
  uint32_t first_psn;
  EceOptions ece;
  uint32_t outstanding_reads = 1;  // number of reads and adds that this end serves at a time
};

// Has the values of ibv_wr_opcode (queue_pair.cc checks this).
enum class Opcode : uint8_t {
  kWrite = 0,
  kWriteImm = 1,
  kSendImm = 3,
  kRead = 4,
  kFetchAdd = 6  // OneSidedRequest
};

// The operations of a queue pair, at both ends. With fewer operations, a device's work requests are shorter.
// Without `read`, the peer may not read.
struct Operations {
  bool send_imm = true, write = true, write_imm = true, read = true, fetch_add = false;
};

// One work request with one local segment. Lengths are in bytes. If `signaled`, the completion contains
// `cookie`.
struct WorkRequest {
  Opcode opcode = Opcode::kWrite;
  bool signaled = false;
  bool send_inline =
      false;         // length <= QueuePair::inline_bytes(); the buffer may be reused when post() returns
  uint32_t imm = 0;  // host byte order
  uint64_t cookie = 0;
  const void* local = nullptr;
  uint32_t local_key = 0;
  uint32_t length = 0;
  uint32_t remote_key = 0;
  uint64_t remote = 0;
};

// A work request for chains with adds and fences. It is a separate type, so that the requests of ordinary
// messages stay small.
struct OneSidedRequest : WorkRequest {
  uint64_t addend = 0;  // of kFetchAdd, on 8 aligned bytes; the previous value is written to `local`
  bool fenced = false;  // starts after all earlier reads and adds are complete
};

// SendSegment and SendEntry have the layouts of ibv_sge and ibv_send_wr (queue_pair.cc checks this), so that
// QueuePair::post() can be inlined without <infiniband/verbs.h>. The device reads them as those types, so
// they may alias.
struct [[gnu::may_alias]] SendSegment {
  uint64_t address;
  uint32_t length, local_key;
};
struct [[gnu::may_alias]] SendEntry {
  static constexpr uint32_t kFence = 1U << 0, kSignaled = 1U << 1, kInline = 1U << 3;

  uint64_t cookie;
  SendEntry* next;
  SendSegment* segments;
  int segment_count;
  uint32_t opcode, flags;
  uint32_t network_imm;  // big endian
  uint64_t remote;
  union {
    uint32_t remote_key;
    struct {
      uint64_t addend, unused;
      uint32_t remote_key;
    } add;  // of kFetchAdd
  };
  uint64_t unused[7];
};

enum class CompletionKind : uint8_t {
  kSend,
  kReceive,
  kReceiveWrite
};  // kReceiveWrite: RDMA WRITE with immediate

// Has the layout of ibv_wc (completion_queue.cc checks this), so that a device fills it in without a copy.
struct Completion {
  uint64_t cookie;  // of the work request; for receives, the cookie of the receive (its page)
  int error;        // 0, or an ibv_wc_status; then only cookie, qp_number and vendor_error are valid
  uint32_t opcode;  // ibv_wc_opcode
  uint32_t vendor_error;
  uint32_t length;         // received or written bytes; receives only
  uint32_t network_imm;    // big endian; valid if `flags` says so
  uint32_t qp_number;      // local queue pair
  uint32_t unused_source;  // only for datagrams
  uint32_t flags;          // ibv_wc_flags
  uint32_t unused[2];

  static constexpr uint32_t kReceiveOpcode = 1U << 7, kReceiveWriteOpcode = kReceiveOpcode + 1;
  static constexpr uint32_t kWithImm = 1U << 1;

  CompletionKind kind() const {
    if (opcode == kReceiveWriteOpcode) return CompletionKind::kReceiveWrite;
    return (opcode & kReceiveOpcode) != 0 ? CompletionKind::kReceive : CompletionKind::kSend;
  }
  // In host byte order; 0 without an immediate.
  uint32_t imm() const { return (flags & kWithImm) != 0 ? be32toh(network_imm) : 0; }
};

}  // namespace verbena::verbs
