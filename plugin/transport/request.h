// What NCCL holds between isend, irecv or iflush and the end of it. Owned by its connection, reused in ring
// order.
#pragma once

#include <cstdint>

#include "protocol/receive_core.h"
#include "protocol/send_core.h"
#include "transport/memory/registration.h"

namespace verbena::transport {

enum class RequestKind : uint8_t { kSend, kReceive, kFlush, kDatagramSend, kDatagramReceive, kDatagramFlush };

struct Request {
  RequestKind kind;
  void* owner;  // the Sender or Receiver, or an end of datagram/channel.h
};

// What the cores of protocol/ are made with.
struct CoreTypes {
  using Request = transport::Request;
  using Memory = Registration;
};

using protocol::ReceiveClass;
using protocol::Statistics;
using SendMessage = protocol::SendMessageOf<CoreTypes>;
using ReceiveMessage = protocol::ReceiveMessageOf<CoreTypes>;
using FlushRequest = protocol::FlushRequestOf<CoreTypes>;

}  // namespace verbena::transport
