#include <endian.h>
#include <sys/random.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <ctime>

#include "base/log.h"
#include "verbs/async_events.h"
#include "verbs/library.h"
#include "verbs/queues.h"

namespace verbena::verbs {
namespace {

using base::Outcome;
using base::Result;
using base::Status;

constexpr size_t kChainEntries = 32;  // bounds the stack of post()
constexpr int kMaxTrafficClass = 255;
constexpr uint32_t kPsnMask = 0xffffff;

// Differs from life to life of a queue pair number, so that a stray packet of an earlier one is not taken for
// ours.
uint32_t draw_first_psn() {
  uint32_t value = 0;
  if (getrandom(&value, sizeof(value), GRND_NONBLOCK) != sizeof(value)) {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    value = static_cast<uint32_t>(now.tv_nsec);
  }
  return value & kPsnMask;
}

ibv_wr_opcode encode_opcode(Opcode opcode) {
  switch (opcode) {
    case Opcode::kSendImm:
      return IBV_WR_SEND_WITH_IMM;
    case Opcode::kWrite:
      return IBV_WR_RDMA_WRITE;
    case Opcode::kWriteImm:
      return IBV_WR_RDMA_WRITE_WITH_IMM;
    case Opcode::kRead:
      return IBV_WR_RDMA_READ;
  }
  __builtin_unreachable();
}

unsigned encode_flags(const WorkRequest& request) {
  unsigned flags = 0;
  if (request.signaled) flags |= IBV_SEND_SIGNALED;
  if (request.send_inline && request.length != 0) flags |= IBV_SEND_INLINE;
  return flags;
}

// Sets the fields that these opcodes use; the rest of *entry (it is 128 bytes) stays uninitialised on
// purpose.
void encode(const WorkRequest& request, ibv_sge* segment, ibv_send_wr* entry, ibv_send_wr* next) {
  *segment = {reinterpret_cast<uintptr_t>(request.local), request.length, request.local_key};
  entry->wr_id = request.cookie;
  entry->next = next;
  entry->sg_list = segment;
  entry->num_sge = request.length != 0 ? 1 : 0;
  entry->opcode = encode_opcode(request.opcode);
  entry->send_flags = encode_flags(request);
  entry->imm_data = htobe32(request.imm);
  entry->wr.rdma.remote_addr = request.remote;
  entry->wr.rdma.rkey = request.remote_key;
}

}  // namespace

void Destroyer::operator()(ibv_qp* pair) const {
  const int error = library->destroy_qp(pair);
  if (error != 0) base::log_warn("queue pair: cannot be destroyed: errno %d", error);
}

DrainMark::DrainMark(Device& device, uint32_t pair_number) : device_(device), pair_number_(pair_number) {
  device_.events().watch_pair(pair_number_, &is_set_);
}

DrainMark::~DrainMark() {
  device_.events().forget_pair(pair_number_);
}

Result<QueuePair> QueuePair::create(Device& device, CompletionQueue& completions,
                                    const QueuePairOptions& options) {
  if (options.send_depth == 0 || options.send_depth > device.max_qp_entries()) {
    return base::fail(Status::kSystem,
                      "device %s: cannot create a queue pair (send depth %u, limit %u entries)",
                      device.name().c_str(), options.send_depth, device.max_qp_entries());
  }
  if (options.traffic_class > kMaxTrafficClass) {
    return base::fail(Status::kInvalidArgument, "device %s: no such traffic class (%d, range 0 to %d)",
                      device.name().c_str(), options.traffic_class, kMaxTrafficClass);
  }
  const Library& library = device.library();
  ibv_qp_init_attr attributes{};
  attributes.send_cq = completions.get();
  attributes.recv_cq = completions.get();
  attributes.srq = options.receive_queue != nullptr ? options.receive_queue->get() : nullptr;
  attributes.cap.max_send_wr = options.send_depth;
  attributes.cap.max_send_sge = 1;
  attributes.cap.max_inline_data = kInlineBytes;
  attributes.qp_type = IBV_QPT_RC;
  ibv_qp* pair = library.create_qp(device.domain(), &attributes);
  if (pair == nullptr) {
    return base::fail_errno(Status::kSystem, errno,
                            "device %s: cannot create a queue pair (send depth %u entries, inline %u bytes)",
                            device.name().c_str(), options.send_depth, kInlineBytes);
  }
  QueuePair result;
  result.pair_ = Owned<ibv_qp>(pair, Destroyer{&library});
  if (attributes.cap.max_inline_data < kInlineBytes) {
    return base::fail(Status::kSystem, "device %s: sends too little inline (asked %u, granted %u bytes)",
                      device.name().c_str(), kInlineBytes, attributes.cap.max_inline_data);
  }
  result.device_ = &device;
  result.number_ = pair->qp_num;
  result.first_psn_ = draw_first_psn();
  result.send_depth_ = options.send_depth;
  result.traffic_class_ = options.traffic_class;
  result.local_ = options.local != nullptr ? *options.local : device.local_address();
  if (options.receive_queue != nullptr) result.drained_ = std::make_unique<DrainMark>(device, pair->qp_num);
  result.query_ece();
  result.signaled_positions_.resize(std::bit_ceil(options.send_depth));
  return result;
}

void QueuePair::stop() {
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_ERR;
  const int error = device_->library().modify_qp(pair_.get(), &attributes, IBV_QP_STATE);
  if (error != 0)
    base::log_info("queue pair %u: cannot be moved to the error state: errno %d", number_, error);
}

Outcome QueuePair::post(std::span<const WorkRequest> requests) {
  if (requests.size() > free_slots()) {
    return base::fail(Status::kInternal, "queue pair %u: send queue is full (asked %zu, free %u requests)",
                      number_, requests.size(), free_slots());
  }
  ibv_send_wr chain[kChainEntries];
  ibv_sge segments[kChainEntries];
  while (!requests.empty()) {
    const size_t count = std::min(requests.size(), kChainEntries);
    for (size_t i = 0; i < count; ++i) {
      encode(requests[i], &segments[i], &chain[i], i + 1 < count ? &chain[i + 1] : nullptr);
    }
    ibv_send_wr* rejected = nullptr;
    const int error = ibv_post_send(pair_.get(), chain, &rejected);
    const size_t accepted = error == 0 ? count : rejected != nullptr ? rejected - chain : 0;
    note_posted(requests.first(accepted));
    if (error != 0) {
      return base::fail_errno(Status::kSystem, error,
                              "queue pair %u: cannot post (request %zu of %zu, %u in flight)", number_,
                              accepted, count, posted_ - retired_);
    }
    requests = requests.subspan(count);
  }
  return {};
}

void QueuePair::note_posted(std::span<const WorkRequest> accepted) {
  const uint32_t mask = static_cast<uint32_t>(signaled_positions_.size()) - 1;
  for (const WorkRequest& request : accepted) {
    ++posted_;
    if (request.signaled) signaled_positions_[signaled_tail_++ & mask] = posted_;
  }
}

void QueuePair::retire() {
  if (signaled_head_ == signaled_tail_) return;  // a completion that no signaled request asked for
  const uint32_t mask = static_cast<uint32_t>(signaled_positions_.size()) - 1;
  retired_ = signaled_positions_[signaled_head_++ & mask];
}

}  // namespace verbena::verbs
