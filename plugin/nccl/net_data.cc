// Implements the data calls: passes messages to the sender or receiver, and returns their results.
#include <array>

#include "base/hot_path.h"
#include "base/log.h"
#include "nccl/communicators.h"
#include "nccl/net_core.h"

namespace verbena::nccl {

namespace {

constexpr int kFirstTableWithHint = 9;

// Refuses messages that are longer than test() can report.
bool can_carry(const transport::Registration& memory, const void* data, size_t length_bytes) {
  // A length of 0 wraps to the largest number.
  return length_bytes - 1 < abi::kMaxReportedBytes ? memory.covers(data, length_bytes) : length_bytes == 0;
}

[[gnu::cold, gnu::noinline]] Outcome refuse_bytes(const char* who, const void* data, size_t length_bytes,
                                                  const transport::Registration& memory) {
  if (length_bytes > abi::kMaxReportedBytes) {
    return base::fail(base::Status::kInvalidArgument,
                      "%s: a message of %zu bytes is too long: the maximum is %zu bytes, because test() "
                      "reports lengths as int",
                      who, length_bytes, abi::kMaxReportedBytes);
  }
  return base::fail(
      base::Status::kInvalidArgument,
      "%s: the message lies outside its registration (data %p, size %zu bytes; registered %p, %zu bytes)",
      who, data, length_bytes, memory.address, memory.length_bytes);
}

[[gnu::cold, gnu::noinline]] Outcome refuse_kind(const char* who, const char* kind) {
  return base::fail(base::Status::kInvalidArgument, "%s: not a %s communicator", who, kind);
}

// One request for all buffers. Below this layer, each buffer is a separate message.
[[gnu::noinline]] Outcome post_group(Communicator& comm, int count, void** data, const size_t* lengths_bytes,
                                     const int* tags, void** mhandles, void** request) {
  *request = nullptr;
  const int most = comm.receiver->unpacks() ? 1 : kMaxReceives;
  if (count < 1 || count > most) {
    return base::fail(base::Status::kInvalidUsage,
                      "irecv: a request has 1 to %d buffers (n is %d, maxRecvs is %d)", most, count, most);
  }
  std::array<transport::Receiver::Buffer, kMaxReceives> buffers;
  for (int i = 0; i < count; ++i) {
    const auto& memory = *static_cast<transport::Registration*>(mhandles[i]);
    if (!can_carry(memory, data[i], lengths_bytes[i]))
      return refuse_bytes("irecv", data[i], lengths_bytes[i], memory);
    buffers[static_cast<size_t>(i)] = {data[i], lengths_bytes[i], &memory, tags[i]};
  }
  transport::Request* posted = nullptr;
  auto outcome = comm.receiver->post_group({buffers.data(), static_cast<size_t>(count)}, &posted);
  *request = posted;
  return outcome;
}

// NCCL's hint on entry to irecv.
bool has_completion_hint(const Communicator& comm, const void* request) {
  return comm.context->abi_version >= kFirstTableWithHint &&
         reinterpret_cast<uintptr_t>(request) == abi::kOptionalRecvCompletion;
}
// Without UNPACK, receives need not be classified.
template <typename End>
transport::ReceiveClass classify(Communicator& comm, const End& end, bool has_hint,
                                 const transport::Registration& memory) {
  if (!end.unpacks()) return transport::ReceiveClass::kNoSlot;
  return classify_receive(has_hint, comm.context->data_attributes(), memory.ordinal,
                          comm.order.find_simple(comm.family));
}

// Like isend and irecv below, for datagrams.
[[gnu::noinline]] Outcome send_datagrams(Communicator& comm, void* data, size_t length_bytes, void* mhandle,
                                         void** request) {
  if (comm.datagram_sender == nullptr) return refuse_kind("isend", "sending");
  const auto& memory = *static_cast<transport::Registration*>(mhandle);
  if (!can_carry(memory, data, length_bytes)) return refuse_bytes("isend", data, length_bytes, memory);
  transport::Request* posted = nullptr;
  auto outcome = comm.datagram_sender->post(data, length_bytes, &memory, &posted);
  *request = posted;
  return outcome;
}
[[gnu::noinline]] Outcome receive_datagrams(Communicator& comm, int count, void** data,
                                            const size_t* lengths_bytes, void** mhandles, void** request) {
  const bool has_hint = has_completion_hint(comm, *request);
  *request = nullptr;
  if (comm.datagram_receiver == nullptr) return refuse_kind("irecv", "receiving");
  if (count != 1)
    return base::fail(base::Status::kInvalidUsage, "irecv: a request has 1 buffer (n is %d, maxRecvs is 1)",
                      count);
  const auto& memory = *static_cast<transport::Registration*>(mhandles[0]);
  if (!can_carry(memory, data[0], lengths_bytes[0]))
    return refuse_bytes("irecv", data[0], lengths_bytes[0], memory);
  transport::Request* posted = nullptr;
  auto outcome = comm.datagram_receiver->post(
      data[0], lengths_bytes[0], &memory, classify(comm, *comm.datagram_receiver, has_hint, memory), &posted);
  *request = posted;
  return outcome;
}

}  // namespace

void name_parent(void* comm, void* phandle) {
  if (comm == nullptr) return;  // the call itself reports the error
  const auto& c = *static_cast<Communicator*>(comm);
  if (c.profiler == nullptr) return;
  observe::Connection* const observed = c.sender != nullptr            ? c.sender->observed()
                                        : c.receiver != nullptr        ? c.receiver->observed()
                                        : c.datagram_sender != nullptr ? c.datagram_sender->observed()
                                                                       : c.datagram_receiver->observed();
  observed->name_parent(phandle);
}

VERBENA_HOT_PATH Outcome isend(void* send_comm, void* data, size_t length_bytes, int tag, void* mhandle,
                               void** request) {
  auto& comm = *static_cast<Communicator*>(send_comm);
  if (comm.sender == nullptr) [[unlikely]]
    return send_datagrams(comm, data, length_bytes, mhandle, request);
  const auto& memory = *static_cast<transport::Registration*>(mhandle);
  if (!can_carry(memory, data, length_bytes)) return refuse_bytes("isend", data, length_bytes, memory);
  const bool may_stage = comm.sender->stages() && memory.ordinal == comm.order.find_simple(comm.family) &&
                         !is_never_unpacked(comm.context->data_attributes());
  transport::Request* posted = nullptr;
  auto outcome = comm.sender->post(data, length_bytes, &memory, may_stage, &posted, tag);
  *request = posted;
  return outcome;
}

VERBENA_HOT_PATH Outcome irecv(void* receive_comm, int count, void** data, const size_t* lengths_bytes,
                               const int* tags, void** mhandles, void** request) {
  auto& comm = *static_cast<Communicator*>(receive_comm);
  if (comm.receiver == nullptr) [[unlikely]]
    return receive_datagrams(comm, count, data, lengths_bytes, mhandles, request);
  if (count != 1) return post_group(comm, count, data, lengths_bytes, tags, mhandles, request);
  const bool has_hint = has_completion_hint(comm, *request);
  *request = nullptr;
  const auto& memory = *static_cast<transport::Registration*>(mhandles[0]);
  if (!can_carry(memory, data[0], lengths_bytes[0])) {
    return refuse_bytes("irecv", data[0], lengths_bytes[0], memory);
  }
  const auto receive_class = classify(comm, *comm.receiver, has_hint, memory);
  transport::Request* posted = nullptr;
  auto outcome = comm.receiver->post(data[0], lengths_bytes[0], &memory, receive_class, &posted, tags[0]);
  *request = posted;
  return outcome;
}

Outcome iflush(void* receive_comm, int count, void** data, const int* lengths_bytes, void** mhandles,
               void** request) {
  auto& comm = *static_cast<Communicator*>(receive_comm);
  *request = nullptr;
  if (comm.receiver == nullptr && comm.datagram_receiver == nullptr)
    return refuse_kind("iflush", "receiving");
  if (count < 1 || count > kMaxReceives) {
    return base::fail(base::Status::kInvalidUsage, "iflush: a request has 1 to %d buffers (n is %d)",
                      kMaxReceives, count);
  }
  // All buffers are on the one GPU for which this communicator receives. So a read that flushes a rail's
  // writes to one buffer also flushes its earlier writes to the other buffers.
  int i = count - 1;
  const auto is_of_gpu = [&](int at) {
    const auto* memory = static_cast<transport::Registration*>(mhandles[at]);
    return lengths_bytes[at] != 0 && memory != nullptr && memory->is_gpu_memory;
  };
  while (i >= 0 && !is_of_gpu(i)) --i;
  if (i < 0) return {};
  transport::Request* posted = nullptr;
  const auto* memory = static_cast<transport::Registration*>(mhandles[i]);
  auto outcome = comm.receiver != nullptr ? comm.receiver->flush(data[i], memory, &posted)
                                          : comm.datagram_receiver->flush(data[i], memory, &posted);
  *request = posted;
  return outcome;
}

VERBENA_HOT_PATH Outcome test(void* request, int* done, int* lengths_bytes) {
  auto* r = static_cast<transport::Request*>(request);
  bool is_done = false;
  Outcome outcome;
  uint64_t bytes[kMaxReceives];  // written when it is done
  uint32_t count = 1;
  switch (r->kind) {
    case transport::RequestKind::kSend: {
      auto& message = *static_cast<transport::SendMessage*>(r);
      bytes[0] = message.length_bytes;
      outcome = static_cast<transport::Sender*>(r->owner)->test(message, &is_done);
      break;
    }
    case transport::RequestKind::kReceive: {
      auto& message = *static_cast<transport::ReceiveMessage*>(r);
      count = message.count;
      outcome = static_cast<transport::Receiver*>(r->owner)->test(message, &is_done, bytes);
      break;
    }
    case transport::RequestKind::kFlush:
      bytes[0] = 0;
      outcome = static_cast<transport::Receiver*>(r->owner)->test_flush(
          *static_cast<transport::FlushRequest*>(r), &is_done);
      break;
    case transport::RequestKind::kDatagramSend: {
      auto& message = static_cast<transport::datagram::SendRequest&>(*r);
      bytes[0] = message.length_bytes;
      outcome = static_cast<transport::datagram::SendEnd*>(r->owner)->test(message, &is_done);
      break;
    }
    case transport::RequestKind::kDatagramReceive:
      outcome = static_cast<transport::datagram::ReceiveEnd*>(r->owner)->test(
          static_cast<transport::datagram::ReceiveRequest&>(*r), &is_done, bytes);
      break;
    case transport::RequestKind::kDatagramFlush:
      bytes[0] = 0;
      outcome = static_cast<transport::datagram::ReceiveEnd*>(r->owner)->test(
          static_cast<transport::datagram::ChannelFlush&>(*r), &is_done);
      break;
  }
  *done = is_done ? 1 : 0;
  if (is_done && lengths_bytes != nullptr) {
    lengths_bytes[0] = static_cast<int>(bytes[0]);
    for (uint32_t i = 1; i < count; ++i) lengths_bytes[i] = static_cast<int>(bytes[i]);
  }
  return outcome;
}

Outcome irecv_consumed(void* receive_comm, int count, void* request) {
  auto& comm = *static_cast<Communicator*>(receive_comm);
  if (comm.receiver == nullptr && comm.datagram_receiver == nullptr)
    return refuse_kind("irecvConsumed", "receiving");
  auto* r = static_cast<transport::Request*>(request);
  if (count >= 1 && count <= kMaxReceives) {
    if (r->kind == transport::RequestKind::kReceive && r->owner == comm.receiver.get())
      return comm.receiver->consume(*static_cast<transport::ReceiveMessage*>(r));
    if (r->kind == transport::RequestKind::kDatagramReceive && r->owner == comm.datagram_receiver.get())
      return comm.datagram_receiver->consume(static_cast<transport::datagram::ReceiveRequest&>(*r));
  }
  return base::fail(base::Status::kInvalidArgument,
                    "irecvConsumed: the request is not a receive of this communicator (n is %d)", count);
}

}  // namespace verbena::nccl
