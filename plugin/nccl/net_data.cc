// Messages: from NCCL's call to the sender or receiver that does the work, and back.
#include "base/log.h"
#include "nccl/communicators.h"
#include "nccl/net_core.h"

namespace verbena::nccl {

namespace {

constexpr int kFirstTableWithHint = 9;

[[gnu::cold, gnu::noinline]] Outcome refuse_outside(const char* who, const void* data, size_t length_bytes,
                                                    const transport::Registration& memory) {
  return base::fail(
      base::Status::kInvalidArgument,
      "%s: the message lies outside its registration (data %p, size %zu bytes; registered %p, %zu bytes)",
      who, data, length_bytes, memory.address, memory.length_bytes);
}

[[gnu::cold, gnu::noinline]] Outcome refuse_kind(const char* who, const char* kind) {
  return base::fail(base::Status::kInvalidArgument, "%s: not a %s communicator", who, kind);
}

}  // namespace

void name_parent(void* comm, void* phandle) {
  if (comm == nullptr) return;  // refused by the call itself
  const auto& c = *static_cast<Communicator*>(comm);
  if (c.profiler == nullptr) return;
  (c.sender != nullptr ? c.sender->observed() : c.receiver->observed())->name_parent(phandle);
}

Outcome isend(void* send_comm, void* data, size_t length_bytes, int, void* mhandle, void** request) {
  auto& comm = *static_cast<Communicator*>(send_comm);
  if (comm.sender == nullptr) return refuse_kind("isend", "sending");
  const auto& memory = *static_cast<transport::Registration*>(mhandle);
  if (length_bytes != 0 && !memory.covers(data, length_bytes))
    return refuse_outside("isend", data, length_bytes, memory);
  const bool may_stage = comm.sender->stages() && memory.ordinal == comm.order.find_simple(comm.family) &&
                         !is_never_unpacked(comm.context->data_attributes());
  transport::Request* posted = nullptr;
  auto outcome = comm.sender->post(data, length_bytes, &memory, may_stage, &posted);
  *request = posted;
  return outcome;
}

Outcome irecv(void* receive_comm, int count, void** data, const size_t* lengths_bytes, void** mhandles,
              void** request) {
  auto& comm = *static_cast<Communicator*>(receive_comm);
  if (comm.receiver == nullptr) return refuse_kind("irecv", "receiving");
  if (count != 1) {
    return base::fail(base::Status::kInvalidUsage, "irecv: one buffer at a time (n %d, maxRecvs 1)", count);
  }
  const bool has_hint = comm.context->abi_version >= kFirstTableWithHint &&
                        reinterpret_cast<uintptr_t>(*request) == abi::kOptionalRecvCompletion;
  *request = nullptr;
  const auto& memory = *static_cast<transport::Registration*>(mhandles[0]);
  if (lengths_bytes[0] != 0 && !memory.covers(data[0], lengths_bytes[0])) {
    return refuse_outside("irecv", data[0], lengths_bytes[0], memory);
  }
  // Where nothing unpacks there is nothing to tell apart.
  const auto receive_class = !comm.receiver->unpacks()
                                 ? transport::ReceiveClass::kNoSlot
                                 : classify_receive(has_hint, comm.context->data_attributes(), memory.ordinal,
                                                    comm.order.find_simple(comm.family));
  transport::Request* posted = nullptr;
  auto outcome = comm.receiver->post(data[0], lengths_bytes[0], &memory, receive_class, &posted);
  *request = posted;
  return outcome;
}

Outcome iflush(void* receive_comm, int count, void** data, const int* lengths_bytes, void** mhandles,
               void** request) {
  auto& comm = *static_cast<Communicator*>(receive_comm);
  if (comm.receiver == nullptr) return refuse_kind("iflush", "receiving");
  *request = nullptr;
  if (count != 1) {
    return base::fail(base::Status::kInvalidUsage, "iflush: one buffer at a time (n %d, maxRecvs 1)", count);
  }
  if (lengths_bytes[0] == 0 || mhandles[0] == nullptr) return {};
  transport::Request* posted = nullptr;
  auto outcome = comm.receiver->flush(data[0], static_cast<transport::Registration*>(mhandles[0]), &posted);
  *request = posted;
  return outcome;
}

Outcome test(void* request, int* done, int* lengths_bytes) {
  auto* r = static_cast<transport::Request*>(request);
  bool is_done;  // written by each
  Outcome outcome;
  uint64_t bytes;  // written where it is done
  switch (r->kind) {
    case transport::RequestKind::kSend: {
      auto& message = *static_cast<transport::SendMessage*>(r);
      bytes = message.length_bytes;
      outcome = static_cast<transport::Sender*>(r->owner)->test(message, &is_done);
      break;
    }
    case transport::RequestKind::kReceive:
      outcome = static_cast<transport::Receiver*>(r->owner)->test(*static_cast<transport::ReceiveMessage*>(r),
                                                                  &is_done, &bytes);
      break;
    case transport::RequestKind::kFlush:
      bytes = 0;
      outcome = static_cast<transport::Receiver*>(r->owner)->test_flush(
          *static_cast<transport::FlushRequest*>(r), &is_done);
      break;
  }
  *done = is_done ? 1 : 0;
  if (is_done && lengths_bytes != nullptr) lengths_bytes[0] = static_cast<int>(bytes);
  return outcome;
}

Outcome irecv_consumed(void* receive_comm, int count, void* request) {
  auto& comm = *static_cast<Communicator*>(receive_comm);
  if (comm.receiver == nullptr) return refuse_kind("irecvConsumed", "receiving");
  auto* r = static_cast<transport::Request*>(request);
  if (count != 1 || r->kind != transport::RequestKind::kReceive || r->owner != comm.receiver.get()) {
    return base::fail(base::Status::kInvalidArgument,
                      "irecvConsumed: not one receive of this communicator (n %d)", count);
  }
  return comm.receiver->consume(*static_cast<transport::ReceiveMessage*>(r));
}

}  // namespace verbena::nccl
