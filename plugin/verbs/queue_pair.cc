#include <endian.h>
#include <sys/random.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstddef>
#include <ctime>

#include "base/hot_path.h"
#include "base/log.h"
#include "verbs/async_events.h"
#include "verbs/library.h"
#include "verbs/mlx5.h"
#include "verbs/queues.h"

namespace verbena::verbs {
namespace {

using base::Outcome;
using base::Result;
using base::Status;

constexpr size_t kSendChainEntries = 32;  // limits the stack of post()
constexpr int kMaxTrafficClass = 255;
constexpr uint32_t kPsnMask = 0xffffff;

// Returns a random number, so that successive queue pairs with the same queue pair number begin differently.
// A delayed packet for an earlier queue pair is then not accepted.
uint32_t draw_first_psn() {
  uint32_t value = 0;
  if (getrandom(&value, sizeof(value), GRND_NONBLOCK) != sizeof(value)) {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    value = static_cast<uint32_t>(now.tv_nsec);
  }
  return value & kPsnMask;
}

template <Opcode kOpcode, ibv_wr_opcode kSame>
constexpr bool kAgree = static_cast<ibv_wr_opcode>(kOpcode) == kSame;
static_assert(kAgree<Opcode::kWrite, IBV_WR_RDMA_WRITE> && kAgree<Opcode::kRead, IBV_WR_RDMA_READ>);
static_assert(kAgree<Opcode::kWriteImm, IBV_WR_RDMA_WRITE_WITH_IMM>);
static_assert(kAgree<Opcode::kSendImm, IBV_WR_SEND_WITH_IMM>);
static_assert(kAgree<Opcode::kFetchAdd, IBV_WR_ATOMIC_FETCH_AND_ADD>);

static_assert(sizeof(SendSegment) == sizeof(ibv_sge) && alignof(SendSegment) == alignof(ibv_sge));
static_assert(offsetof(SendSegment, address) == offsetof(ibv_sge, addr));
static_assert(offsetof(SendSegment, length) == offsetof(ibv_sge, length));
static_assert(offsetof(SendSegment, local_key) == offsetof(ibv_sge, lkey));
static_assert(sizeof(SendEntry) == sizeof(ibv_send_wr) && alignof(SendEntry) == alignof(ibv_send_wr));
static_assert(offsetof(SendEntry, cookie) == offsetof(ibv_send_wr, wr_id));
static_assert(offsetof(SendEntry, next) == offsetof(ibv_send_wr, next));
static_assert(offsetof(SendEntry, segments) == offsetof(ibv_send_wr, sg_list));
static_assert(offsetof(SendEntry, segment_count) == offsetof(ibv_send_wr, num_sge));
static_assert(offsetof(SendEntry, opcode) == offsetof(ibv_send_wr, opcode));
static_assert(offsetof(SendEntry, flags) == offsetof(ibv_send_wr, send_flags));
static_assert(offsetof(SendEntry, network_imm) == offsetof(ibv_send_wr, imm_data));
static_assert(offsetof(SendEntry, remote) == offsetof(ibv_send_wr, wr.rdma.remote_addr));
static_assert(offsetof(SendEntry, remote) == offsetof(ibv_send_wr, wr.atomic.remote_addr));
static_assert(offsetof(SendEntry, remote_key) == offsetof(ibv_send_wr, wr.rdma.rkey));
static_assert(offsetof(SendEntry, add.addend) == offsetof(ibv_send_wr, wr.atomic.compare_add));
static_assert(offsetof(SendEntry, add.unused) == offsetof(ibv_send_wr, wr.atomic.swap));
static_assert(offsetof(SendEntry, add.remote_key) == offsetof(ibv_send_wr, wr.atomic.rkey));
static_assert(sizeof(SendSegment::address) == sizeof(ibv_sge::addr));
static_assert(sizeof(SendSegment::length) == sizeof(ibv_sge::length));
static_assert(sizeof(SendSegment::local_key) == sizeof(ibv_sge::lkey));
static_assert(sizeof(SendEntry::segment_count) == sizeof(ibv_send_wr::num_sge));
static_assert(sizeof(SendEntry::opcode) == sizeof(ibv_send_wr::opcode));
static_assert(sizeof(SendEntry::flags) == sizeof(ibv_send_wr::send_flags));
static_assert(sizeof(SendEntry::network_imm) == sizeof(ibv_send_wr::imm_data));
static_assert(SendEntry::kFence == IBV_SEND_FENCE && SendEntry::kSignaled == IBV_SEND_SIGNALED);
static_assert(SendEntry::kInline == IBV_SEND_INLINE);

#ifndef _GLIBCXX_DEBUG  // whose containers are larger
static_assert(std::has_single_bit(sizeof(QueuePair)));
#endif

uint64_t encode_operations(const Operations& operations) {
  return (operations.send_imm ? IBV_QP_EX_WITH_SEND_WITH_IMM : 0) |
         (operations.write ? IBV_QP_EX_WITH_RDMA_WRITE : 0) |
         (operations.write_imm ? IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM : 0) |
         (operations.read ? IBV_QP_EX_WITH_RDMA_READ : 0) |
         (operations.fetch_add ? IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD : 0);
}

// Uses the newer call if the device has it: mlx5 then knows which operations will be posted, and builds work
// requests of 64 bytes instead of 256. ibv_post_send() works as before (man ibv_wr_post). ibv_create_qp_ex()
// of verbs.h is an inline function that would bind to a library.
ibv_qp* create_pair(const Device& device, const QueuePairOptions& options, ibv_qp_init_attr_ex* attributes) {
  const bool keeps_from_cqe = options.receives_to_gpu && device.mlx5() != nullptr;
  if (options.out_of_order || keeps_from_cqe) {
    attributes->comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    return device.mlx5()->create_pair(device.context(), attributes, options.out_of_order, keeps_from_cqe);
  }
  verbs_context* extended = verbs_get_ctx_op(device.context(), create_qp_ex);
  if (extended != nullptr) {
    ibv_qp_init_attr_ex asked = *attributes;
    asked.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    errno = 0;  // some devices do not set it if they reject the flags
    ibv_qp* pair = extended->create_qp_ex(device.context(), &asked);
    const bool is_unknown = errno == 0 || errno == EOPNOTSUPP || errno == ENOSYS || errno == EINVAL;
    if (pair != nullptr || !is_unknown) {
      attributes->cap = asked.cap;
      return pair;
    }
  }
  ibv_qp_init_attr basic{};
  basic.send_cq = attributes->send_cq;
  basic.recv_cq = attributes->recv_cq;
  basic.srq = attributes->srq;
  basic.cap = attributes->cap;
  basic.qp_type = attributes->qp_type;
  ibv_qp* pair = device.library().create_qp(device.domain(), &basic);
  attributes->cap = basic.cap;
  return pair;
}

struct MadePair {
  Owned<ibv_qp> pair;
  uint32_t inline_bytes;
};

// Some devices grant fewer inline bytes than requested. Other devices do not create the queue pair in this
// case.
Result<MadePair> make_pair(const Device& device, const CompletionQueue& completions,
                           const QueuePairOptions& options) {
  ibv_qp_init_attr_ex attributes{};
  attributes.send_cq = completions.get();
  attributes.recv_cq = completions.get();
  attributes.srq = options.receive_queue != nullptr ? options.receive_queue->get() : nullptr;
  attributes.cap.max_send_wr = options.send_depth;
  attributes.cap.max_send_sge = 1;
  attributes.cap.max_recv_wr = options.receive_depth;
  attributes.cap.max_recv_sge = options.receive_depth != 0 ? 1 : 0;
  attributes.cap.max_inline_data = options.inline_bytes;
  attributes.qp_type = IBV_QPT_RC;
  attributes.pd = device.domain();
  attributes.send_ops_flags = encode_operations(options.operations);
  const ibv_qp_cap asked = attributes.cap;
  ibv_qp* pair = create_pair(device, options, &attributes);
  for (uint32_t bytes = options.inline_bytes; pair == nullptr && errno == EINVAL && bytes != 0;) {
    bytes /= 2;
    attributes.cap = asked;
    attributes.cap.max_inline_data = bytes;
    pair = create_pair(device, options, &attributes);
  }
  if (pair == nullptr) {
    return base::fail_errno(
        Status::kSystem, errno,
        "device %s: cannot create a queue pair%s (send depth %u, receive depth %u entries, inline %u bytes)",
        device.name().c_str(), hint_at_memory(errno), options.send_depth, options.receive_depth,
        options.inline_bytes);
  }
  return MadePair{Owned<ibv_qp>(pair, Destroyer{&device.library()}),
                  std::min(attributes.cap.max_inline_data, options.inline_bytes)};
}

}  // namespace

void Destroyer::operator()(ibv_qp* pair) const {
  const uint32_t number = pair->qp_num;
  const char* const device = name_device(pair->context);
  const int error = library->destroy_qp(pair);
  if (error != 0)
    base::log_warn("device %s: queue pair %u cannot be destroyed (errno %d)", device, number, error);
}

Result<QueuePair> QueuePair::create(Device& device, CompletionQueue& completions,
                                    const QueuePairOptions& options) {
  if (options.send_depth == 0 ||
      std::max(options.send_depth, options.receive_depth) > device.max_qp_entries()) {
    return base::fail(
        Status::kSystem,
        "device %s: cannot create a queue pair (send depth %u, receive depth %u, limit %u entries)",
        device.name().c_str(), options.send_depth, options.receive_depth, device.max_qp_entries());
  }
  if (options.traffic_class > kMaxTrafficClass) {
    return base::fail(Status::kInvalidArgument, "device %s: traffic class %d is out of range (0 to %d)",
                      device.name().c_str(), options.traffic_class, kMaxTrafficClass);
  }
  auto made = make_pair(device, completions, options);
  if (!made) return made.error();
  QueuePair result;
  result.pair_ = std::move(made->pair);
  result.post_send_ = result.pair_->context->ops.post_send;
  result.device_ = &device;
  result.number_ = result.pair_->qp_num;
  result.first_psn_ = draw_first_psn();
  result.send_depth_ = options.send_depth;
  result.inline_bytes_ = static_cast<uint8_t>(made->inline_bytes);
  result.serves_reads_ = options.operations.read;
  result.serves_adds_ = options.operations.fetch_add;
  result.outstanding_reads_ = static_cast<uint8_t>(options.outstanding_reads);
  result.traffic_class_ = static_cast<int16_t>(options.traffic_class);
  if (const uint32_t ports = device.bonded_ports(); ports > 1)
    result.bonded_port_ = static_cast<uint8_t>(1 + options.bond_turn % ports);
  result.local_ = options.local != nullptr ? *options.local : device.local_address();
  if (options.receive_queue != nullptr)
    result.drained_ = std::make_unique<EventMark>(device, result.pair_.get());
  result.query_ece();
  result.signaled_positions_.resize(std::bit_ceil(options.send_depth));
  result.signaled_mask_ = static_cast<uint32_t>(result.signaled_positions_.size()) - 1;
  return result;
}

void QueuePair::stop() {
  if (pair_ == nullptr) return;
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_ERR;
  const int error = device_->library().modify_qp(pair_.get(), &attributes, IBV_QP_STATE);
  if (error != 0)
    base::log_info("device %s:%d: queue pair %u cannot be moved to the error state (errno %d)",
                   device_->name().c_str(), device_->port_number(), number_, error);
}

void QueuePair::abandon() {
  if (const int error = enter_init(); error != 0)
    base::log_info("device %s:%d: queue pair %u cannot be moved to INIT (errno %d)", device_->name().c_str(),
                   device_->port_number(), number_, error);
  stop();
}

base::Error QueuePair::fail_full(size_t asked_requests) const {
  return base::fail(Status::kInternal,
                    "device %s:%d: queue pair %u: send queue is full (%zu requests to post, space for %u)",
                    device_->name().c_str(), device_->port_number(), number_, asked_requests, free_slots());
}

base::Error QueuePair::fail_post(int errno_value, size_t accepted, size_t asked_requests) const {
  return base::fail_errno(Status::kSystem, errno_value,
                          "device %s:%d: queue pair %u: cannot post (request %zu of %zu, %u in flight)",
                          device_->name().c_str(), device_->port_number(), number_, accepted, asked_requests,
                          posted_ - retired_);
}

void QueuePair::encode(const OneSidedRequest& request, SendSegment* segment, SendEntry* entry,
                       SendEntry* next) {
  encode(static_cast<const WorkRequest&>(request), segment, entry, next);
  if (request.fenced) entry->flags |= SendEntry::kFence;
  if (request.opcode == Opcode::kFetchAdd) entry->add = {request.addend, 0, request.remote_key};
}

template <typename Request>
Outcome QueuePair::post_chain(std::span<const Request> requests) {
  if (requests.size() > free_slots()) return fail_full(requests.size());
  SendEntry chain[kSendChainEntries];
  SendSegment segments[kSendChainEntries];
  while (!requests.empty()) {
    const size_t count = std::min(requests.size(), kSendChainEntries);
    for (size_t i = 0; i < count; ++i) {
      encode(requests[i], &segments[i], &chain[i], i + 1 < count ? &chain[i + 1] : nullptr);
    }
    SendEntry* rejected = nullptr;
    const int error = hand_over(chain, &rejected);
    const size_t accepted = error == 0 ? count : rejected != nullptr ? rejected - chain : 0;
    for (const Request& request : requests.first(accepted)) note_posted(request.signaled);
    if (error != 0) return fail_post(error, accepted, count);
    requests = requests.subspan(count);
  }
  return {};
}

Outcome QueuePair::post(std::span<const WorkRequest> requests) {
  return post_chain(requests);
}

Outcome QueuePair::post(std::span<const OneSidedRequest> requests) {
  return post_chain(requests);
}

}  // namespace verbena::verbs
