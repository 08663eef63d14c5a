// The messages between a queue's writer and readers over their link (plugin/bootstrap/frame_link.h), and the
// handle by which a reader finds the writer. A link stays open as long as both ends live, so a closed link
// means that the peer has exited. For a reader on another host, the link also carries the queue's messages.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>

#include "base/socket_address.h"
#include "bootstrap/host_domain.h"
#include "bootstrap/messages.h"
#include "device/message_queue/ring_memory.h"

namespace verbena::message_queue {

inline constexpr uint64_t kHandleMagic = 0x7565'7571'6272'6576;  // "verbqueu"
inline constexpr uint32_t kHandleVersion = 2;
// Stands for a reader's number if the writer should assign the highest free number.
inline constexpr uint32_t kAnyReader = UINT32_MAX;
inline std::string name_reader(uint32_t number) {
  return number == kAnyReader ? "a reader" : "reader " + std::to_string(number);
}

// Opaque to applications. A received handle is untrusted.
struct Handle {
  uint64_t magic = kHandleMagic;
  uint32_t version = kHandleVersion;
  uint32_t count_readers = 0;
  base::SocketAddress writer;
  bootstrap::Nonce nonce{};   // identifies the queue; sent over the network
  bootstrap::Nonce secret{};  // if there is no job key, ends prove that they know the secret, but never send
                              // it; zeros: no secret
  uint8_t reserved[24] = {};
};
static_assert(sizeof(Handle) == 128 && std::is_trivially_copyable_v<Handle>);

// The links of queues have a separate purpose and separate frame kinds, which the bootstrap never uses.
inline constexpr auto kQueuePurpose = static_cast<bootstrap::Purpose>(0x51);
enum : uint8_t {
  kAttach = 0x51,  // reader to writer: an Attachment
  // writer to reader: an Admission; the descriptor of the shared memory follows by Unix socket
  kAdmitted,
  kMapped,  // local reader to writer: the memory is mapped
  kGo,      // writer to all readers, when all are connected
  kPart,    // writer to remote reader: PartHead and bytes; `sequence` counts the parts
  kCredit,  // remote reader to writer: parts below `sequence` are released
  kEnd,     // writer to remote reader: no message follows
  kLeave,   // reader to writer: the reader leaves in order
};
inline constexpr bootstrap::FrameKind to_kind(uint8_t kind) {
  return static_cast<bootstrap::FrameKind>(kind);
}

// Identifies a process within a PID namespace. Any process of the same namespace can watch whether the
// process ends.
struct ProcessName {
  uint64_t space = 0;  // the inode of /proc/self/ns/pid
  int64_t pid = 0;
};
ProcessName name_own_process();

struct Attachment {
  bootstrap::HostKey host;
  bootstrap::PostAddress post;
  ProcessName process;
};

struct Admission {
  RingShape shape;
  uint32_t is_local = 0;
  uint32_t reader = 0;  // the reader's number
  ProcessName process;
};

struct PartHead {
  uint64_t message_bytes = 0;
  uint32_t flags = 0;
  uint32_t reserved = 0;
};

// Copies a frame's payload to a structure. Returns false if the length is wrong.
template <typename Payload>
bool read_payload(const bootstrap::Record& record, Payload& payload) {
  const base::Bytes bytes = bootstrap::payload_of(record);
  if (bytes.size() != sizeof(payload)) return false;
  std::memcpy(&payload, bytes.data(), sizeof(payload));
  return true;
}
inline bootstrap::Record make_frame(uint8_t kind, std::initializer_list<base::Bytes> parts = {},
                                    uint64_t sequence = 0) {
  return bootstrap::make_record({.kind = to_kind(kind), .sequence = static_cast<uint32_t>(sequence)}, parts);
}
inline uint8_t kind_of(const bootstrap::Record& record) {
  return static_cast<uint8_t>(bootstrap::header_of(record).kind);
}

}  // namespace verbena::message_queue
