// Implements the data calls: passes messages to the sender or receiver, and returns their results.
#include <array>

#include "base/hot_path.h"
#include "base/log.h"
#include "nccl/communicators.h"
#include "nccl/net_core.h"

namespace verbena::nccl {

namespace {

constexpr int kFirstTableWithHint = 9;

// Rejects messages that are longer than test() can report.
bool can_carry(const transport::Registration& memory, const void* data, size_t length_bytes) {
  // A length of 0 wraps to the largest number.
  return length_bytes - 1 < abi::kMaxReportedBytes ? memory.covers(data, length_bytes) : length_bytes == 0;
}

[[gnu::cold, gnu::noinline]] Outcome refuse_bytes(const char* who, const void* data, size_t length_bytes,
                                                  const transport::Registration& memory) {
  if (length_bytes > abi::kMaxReportedBytes) {
    return base::fail(base::Status::kInvalidArgument,
                      "%s: a message of %zu bytes is too long. The maximum is %zu bytes, because test() "
                      "reports lengths as int",
                      who, length_bytes, abi::kMaxReportedBytes);
  }
  return base::fail(base::Status::kInvalidArgument,
                    "%s: the message is not inside the registered memory (data %p, size %zu bytes; "
                    "registered %p, %zu bytes)",
                    who, data, length_bytes, memory.address, memory.length_bytes);
}

[[gnu::cold, gnu::noinline]] Outcome refuse_kind(const char* who, const char* kind) {
  return base::fail(base::Status::kInvalidArgument, "%s: not a %s communicator", who, kind);
}

// One request for all buffers. Below this layer, each buffer is a separate message.
[[gnu::noinline]] Outcome post_group(Communicator& comm, int count, void** data, const size_t* lengths_bytes,
                                     const int* tags, void** mhandles, void** request) {
  *request = nullptr;
  const int most = static_cast<int>(comm.receiver->max_buffers());
  if (count < 1 || count > most) {
    return base::fail(base::Status::kInvalidUsage,
                      "irecv: a request must have 1 to %d buffers (n is %d, maxRecvs is %d)", most, count,
                      most);
  }
  std::array<transport::ReceiveBuffer, kMaxReceives> buffers;
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
bool has_completion_hint(const Communicator& comm, const void* hint) {
  return comm.context->abi_version >= kFirstTableWithHint &&
         reinterpret_cast<uintptr_t>(hint) == abi::kOptionalRecvCompletion;
}

// Writes the output of a call that posts.
Outcome take(const transport::Posted& posted, void** request) {
  *request = posted.request;
  return posted.outcome;
}

// For connections with staging. Separate functions, so that isend() and irecv() save no registers for them.
[[gnu::noinline]] VERBENA_HOT_PATH Outcome isend_to_kernel(Communicator& comm, void* data,
                                                           size_t length_bytes, int tag,
                                                           const transport::Registration& memory,
                                                           void** request) {
  const bool may_stage = memory.ordinal == comm.order.find_simple(comm.family) &&
                         !is_never_unpacked(comm.context->data_attributes());
  return take(comm.sender->post(data, length_bytes, &memory, may_stage, tag), request);
}
[[gnu::noinline]] VERBENA_HOT_PATH Outcome irecv_for_kernel(Communicator& comm, void* data,
                                                            size_t length_bytes, int tag,
                                                            const transport::Registration& memory,
                                                            void** request) {
  const auto receive_class =
      classify_receive(has_completion_hint(comm, *request), comm.context->data_attributes(), memory.ordinal,
                       comm.order.find_simple(comm.family));
  return take(comm.receiver->post(data, length_bytes, &memory, receive_class, tag), request);
}

}  // namespace

void name_parent(void* comm, void* phandle) {
  if (comm == nullptr) return;  // the call itself reports the error
  const auto& c = *static_cast<Communicator*>(comm);
  if (c.profiler == nullptr) return;
  c.end().observer()->name_parent(phandle);
}

VERBENA_HOT_PATH Outcome isend(void* send_comm, void* data, size_t length_bytes, int tag, void* mhandle,
                               void** request) {
  auto& comm = *static_cast<Communicator*>(send_comm);
  if (comm.sender == nullptr) [[unlikely]]
    return refuse_kind("isend", "sending");
  const auto& memory = *static_cast<transport::Registration*>(mhandle);
  if (!can_carry(memory, data, length_bytes)) return refuse_bytes("isend", data, length_bytes, memory);
  if (comm.sender->stages()) return isend_to_kernel(comm, data, length_bytes, tag, memory, request);
  return take(comm.sender->post(data, length_bytes, &memory, false, tag), request);
}

VERBENA_HOT_PATH Outcome irecv(void* receive_comm, int count, void** data, const size_t* lengths_bytes,
                               const int* tags, void** mhandles, void** request) {
  auto& comm = *static_cast<Communicator*>(receive_comm);
  if (comm.receiver == nullptr) [[unlikely]]
    return refuse_kind("irecv", "receiving");
  if (count != 1) return post_group(comm, count, data, lengths_bytes, tags, mhandles, request);
  const auto& memory = *static_cast<transport::Registration*>(mhandles[0]);
  if (!can_carry(memory, data[0], lengths_bytes[0])) {
    *request = nullptr;
    return refuse_bytes("irecv", data[0], lengths_bytes[0], memory);
  }
  if (comm.receiver->unpacks())
    return irecv_for_kernel(comm, data[0], lengths_bytes[0], tags[0], memory, request);
  return take(
      comm.receiver->post(data[0], lengths_bytes[0], &memory, transport::ReceiveClass::kNoSlot, tags[0]),
      request);
}

Outcome iflush(void* receive_comm, int count, void** data, const int* lengths_bytes, void** mhandles,
               void** request) {
  auto& comm = *static_cast<Communicator*>(receive_comm);
  *request = nullptr;
  if (comm.receiver == nullptr) return refuse_kind("iflush", "receiving");
  if (count < 1 || count > kMaxReceives) {
    return base::fail(base::Status::kInvalidUsage, "iflush: a request must have 1 to %d buffers (n is %d)",
                      kMaxReceives, count);
  }
  // All buffers are in memory of the one GPU for which this communicator receives. So a read that flushes a
  // rail's writes to one buffer also flushes the earlier writes to the other buffers.
  int i = count - 1;
  const auto is_of_gpu = [&](int at) {
    const auto* memory = static_cast<transport::Registration*>(mhandles[at]);
    return lengths_bytes[at] != 0 && memory != nullptr && memory->is_gpu_memory;
  };
  while (i >= 0 && !is_of_gpu(i)) --i;
  if (i < 0) return {};
  transport::Request* posted = nullptr;
  const auto* memory = static_cast<transport::Registration*>(mhandles[i]);
  auto outcome = comm.receiver->flush(data[i], memory, &posted);
  *request = posted;
  return outcome;
}

VERBENA_HOT_PATH Outcome test(void* request, int* done, int* lengths_bytes) {
  auto* r = static_cast<transport::Request*>(request);
  return r->owner->test(*r, done, lengths_bytes);
}

Outcome irecv_consumed(void* receive_comm, int count, void* request) {
  auto& comm = *static_cast<Communicator*>(receive_comm);
  if (comm.receiver == nullptr) return refuse_kind("irecvConsumed", "receiving");
  auto* r = static_cast<transport::Request*>(request);
  const bool is_ours = r->kind == transport::RequestKind::kReceive && r->owner == comm.receiver.get();
  if (is_ours && count >= 1 && count <= kMaxReceives) return comm.receiver->consume(*r);
  return base::fail(base::Status::kInvalidArgument,
                    "irecvConsumed: the request is not a receive of this communicator (n is %d)", count);
}

}  // namespace verbena::nccl
