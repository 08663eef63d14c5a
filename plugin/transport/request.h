// What NCCL holds between isend, irecv or iflush and the end of it. Owned by its connection, reused in ring
// order.
#pragma once

#include <cstdint>

namespace verbena::transport {

enum class RequestKind : uint8_t { kSend, kReceive, kFlush };

struct Request {
  RequestKind kind;
  void* owner;  // the Sender or Receiver
};

}  // namespace verbena::transport
