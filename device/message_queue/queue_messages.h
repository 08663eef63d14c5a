// What a queue's writer and readers say to each other over their link (plugin/bootstrap/link.h), and the
// handle by which a reader finds the writer. A link stands as long as both ends live, and says who has gone.
// To a reader of another host the messages go over it too.
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
// In place of a reader's number: the writer gives it the highest that is free.
inline constexpr uint32_t kAnyReader = UINT32_MAX;
inline std::string name_reader(uint32_t number) {
  return number == kAnyReader ? "a reader" : "reader " + std::to_string(number);
}

// Opaque to applications; comes from anywhere.
struct Handle {
  uint64_t magic = kHandleMagic;
  uint32_t version = kHandleVersion;
  uint32_t count_readers = 0;
  base::SocketAddress writer;
  bootstrap::Nonce nonce{};   // who does not know it is of another queue; sent over the network
  bootstrap::Nonce secret{};  // never sent, only proven, where there is no job key; zeros: there is none
  uint8_t reserved[24] = {};
};
static_assert(sizeof(Handle) == 128 && std::is_trivially_copyable_v<Handle>);

// What the bootstrap's links carry for a queue: kinds and a purpose that the bootstrap itself has no use for.
inline constexpr auto kQueuePurpose = static_cast<bootstrap::Purpose>(0x51);
enum : uint8_t {
  kAttach = 0x51,  // from a reader: an Attachment
  kAdmitted,       // to it: an Admission; the descriptor of the shared memory goes to its post
  kMapped,         // from a reader that shares memory: it does
  kGo,             // to all, once all are there
  kPart,           // to a reader elsewhere: PartHead and bytes; `sequence` counts them
  kCredit,         // from it: parts below `sequence` are given back
  kEnd,            // to it: no message follows
  kLeave,          // from it: it goes in order
};
inline constexpr bootstrap::FrameKind to_kind(uint8_t kind) {
  return static_cast<bootstrap::FrameKind>(kind);
}

// Who a process is, for one of the same process namespace: then its end can be watched.
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
  uint32_t reader = 0;  // its number
  ProcessName process;
};

struct PartHead {
  uint64_t message_bytes = 0;
  uint32_t flags = 0;
  uint32_t reserved = 0;
};

// A frame's payload as what it should be; false: it is not.
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
