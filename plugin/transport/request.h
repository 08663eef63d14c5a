// The object that NCCL holds from isend, irecv or iflush until test reports the operation complete. The end
// that returned a request owns it, and reuses it later.
#pragma once

#include <cstdint>

#include "protocol/receive_core.h"
#include "protocol/send_core.h"
#include "transport/memory/registration.h"

namespace verbena::transport {

class MessageEnd;

enum class RequestKind : uint8_t { kSend, kReceive, kFlush };

struct Request {
  RequestKind kind;
  MessageEnd* owner;
};

// The types with which the cores of protocol/ are instantiated.
struct CoreTypes {
  using Request = transport::Request;
  using Memory = Registration;
};

using protocol::ReceiveClass;
using protocol::Statistics;
using SendMessage = protocol::SendMessageOf<CoreTypes>;
using ReceiveMessage = protocol::ReceiveMessageOf<CoreTypes>;
static_assert(sizeof(ReceiveMessage) == 256);  // so that the address of a message is a shift and an addition
using FlushRequest = protocol::FlushRequestOf<CoreTypes>;

}  // namespace verbena::transport
