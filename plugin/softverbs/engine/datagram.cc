#include "softverbs/engine/datagram.h"

#include <algorithm>
#include <cstring>

#include "softverbs/engine/memory_region.h"
#include "softverbs/engine/near_memory.h"
#include "softverbs/engine/queue_pair.h"
#include "softverbs/faults/rails.h"
#include "softverbs/gpu/gpu_copy.h"
#include "softverbs/wire/wire.h"

namespace verbena::softverbs {
namespace {

constexpr uint32_t kFlowLabelBits = (1u << 20) - 1;
constexpr size_t kMaxChainPieces = 1024;        // of one system call
constexpr uint32_t kPrivilegedQkey = 1u << 31;  // such a key in a request selects the queue pair's own key

void fill_header(Operation& op, const Ah& handle) {
  ibv_grh header{};
  header.version_tclass_flow = htobe32(6u << 28 | uint32_t{handle.attributes.grh.traffic_class} << 20 |
                                       (handle.attributes.grh.flow_label & kFlowLabelBits));
  header.paylen = htobe16(static_cast<uint16_t>(op.request->length));
  header.next_hdr = 0x1b;
  header.hop_limit = handle.attributes.grh.hop_limit;
  header.sgid = get_gid(op.qp->device, handle.attributes.grh.sgid_index);
  header.dgid = handle.attributes.grh.dgid;
  memcpy(op.header, &header, sizeof(header));
}

// The queue pair that a datagram reaches, or none.
bool find_target(Operation& op, const Ah& handle) {
  const SendRequest& request = *op.request;
  op.peer = handle.is_local ? Process::get()->find_peer(request.remote_qp) : nullptr;
  if (op.peer == nullptr || op.peer->dead.load(std::memory_order_acquire)) return false;
  op.target_index = get_qp_index(request.remote_qp);
  op.target = &op.peer->segment->qp(op.target_index);
  return !faults::is_down(*op.peer->segment, op.target->device.get());
}

bool is_accepted(const Operation& op, const Ah& handle) {
  const SendRequest& request = *op.request;
  const SharedQp& target = *op.target;
  const ibv_qp_state state = get_state(target);
  const bool is_there = target.number.load(std::memory_order_acquire) == request.remote_qp &&
                        target.type.get() == IBV_QPT_UD &&
                        has_gid(target.device.get(), handle.attributes.grh.dgid) &&
                        (state == IBV_QPS_RTR || state == IBV_QPS_RTS || state == IBV_QPS_SQD);
  const bool uses_own = (request.remote_qkey & kPrivilegedQkey) != 0;
  return is_there && target.qkey.get() == (uses_own ? op.qp->attributes.qkey : request.remote_qkey);
}

}  // namespace

bool scatter_datagram(Operation& op) {
  Segment& segment = *op.peer->segment;
  const SharedReceiveQueue& queue = segment.receive_queue(op.target->receive_queue.get());
  uint64_t left = op.bytes;
  for (const SharedSge& sge : op.receive.sges) {
    const uint64_t take = std::min<uint64_t>(left, sge.length);
    if (take == 0) continue;
    const Place place =
        translate(segment, {sge.address, take, sge.lkey, queue.pd.get(), IBV_ACCESS_LOCAL_WRITE});
    if (place.address == 0) return false;
    op.remote.add(place.address, take, place.gpu, sge.lkey);
    left -= take;
  }
  return left == 0;
}

StepOutcome prepare_datagram(Operation& op) {
  const Ah& handle = *reinterpret_cast<const Ah*>(op.request->address_handle);
  op.remote.clear();
  op.bytes = 0;  // lost, unless it arrives later
  if (faults::is_down(Process::get()->segment(), op.qp->device)) return {};
  if (!handle.is_local && wire::get_wire() != nullptr) {
    op.is_wired = true;
    return {};
  }
  if (!find_target(op, handle)) return {};
  op.mark();
  Segment& segment = *op.peer->segment;
  SharedReceiveQueue& queue = segment.receive_queue(op.target->receive_queue.get());
  if (!is_accepted(op, handle) || !pop_receive(segment, queue, op.target_index, op.receive, Take::kAtOnce)) {
    op.unmark();
    return {};
  }
  op.has_receive = true;
  fill_header(op, handle);
  op.local.add_first(reinterpret_cast<uint64_t>(op.header), sizeof(op.header));
  op.bytes = op.request->length + sizeof(op.header);
  op.fits = scatter_datagram(op);
  if (!op.fits) op.bytes = 0;
  return {};
}

namespace {

// A part of a copy in which neither side has a border.
struct Chunk {
  uint64_t near, far, bytes;
  uint32_t near_gpu, far_gpu;
  uint64_t origin;
};

template <typename Visit>
bool for_each_chunk(const Operation& op, Visit&& visit) {
  size_t at_near = 0, at_far = 0;
  uint64_t done_near = 0, done_far = 0;
  while (at_near < op.local.pieces.size() && at_far < op.remote.pieces.size()) {
    const iovec& near = op.local.pieces[at_near];
    const iovec& far = op.remote.pieces[at_far];
    const uint64_t take = std::min(near.iov_len - done_near, far.iov_len - done_far);
    const Chunk chunk{reinterpret_cast<uint64_t>(near.iov_base) + done_near,
                      reinterpret_cast<uint64_t>(far.iov_base) + done_far,
                      take,
                      op.local.gpus[at_near],
                      op.remote.gpus[at_far],
                      uint64_t{op.local.keys[at_near]} << 32 | op.remote.keys[at_far]};
    if (take != 0 && !visit(chunk)) return false;
    done_near += take;
    done_far += take;
    if (done_near == near.iov_len) ++at_near, done_near = 0;
    if (done_far == far.iov_len) ++at_far, done_far = 0;
  }
  return true;
}

bool is_between_hosts(const Chunk& chunk) {
  return chunk.near_gpu == 0 && chunk.far_gpu == 0;
}
// Returns whether this process's copies reach only one side, so that the data must be staged.
bool is_staged(const Operation& op, const Chunk& chunk) {
  return chunk.near_gpu != 0 && chunk.far_gpu == 0 && !op.peer->is_self;
}

}  // namespace

DatagramChain::~DatagramChain() {
  if (stage_ != nullptr) Process::get()->datagram_stages[rail_].give_back(stage_);
}

// Reserves space for an operation's bytes, adjacent to the bytes of the previous operation.
DatagramChain::Begun DatagramChain::reserve(const Operation& op, uint64_t bytes, uint8_t*& stage) {
  if (stage_ == nullptr) {
    rail_ = op.qp->device;
    stage_ = Process::get()->datagram_stages[rail_].take();
    if (stage_ == nullptr) return Begun::kNo;
  }
  if (staged_operations_ == 0) stage_at_ = 0;
  if (stage_at_ + bytes > DatagramStages::kPartBytes) return Begun::kLater;
  stage = stage_ + stage_at_;
  stage_at_ += bytes;
  ++staged_operations_;
  return Begun::kYes;
}

DatagramChain::Begun DatagramChain::begin(Operation& op) {
  if (op.bytes == 0) return Begun::kYes;  // lost, or its receive is invalid
  GpuLane* const lane = op.uses_gpu() ? choose_lane(op) : nullptr;
  uint8_t* stage = nullptr;
  if (op.uses_gpu()) {
    if (lane == nullptr) return Begun::kNo;
    Process::get()->imports.begin_use();
    uint64_t staged_bytes = 0;
    const bool can_all = for_each_chunk(op, [&](const Chunk& chunk) {
      if (is_between_hosts(chunk)) return true;
      AreaAddress here, there;
      if (!address_own(*lane, chunk.near, chunk.near_gpu, here)) return false;
      if (is_staged(op, chunk)) return staged_bytes += chunk.bytes, true;
      return address_remote(op, lane, chunk.far, chunk.far_gpu, there);
    });
    Begun begun = can_all ? Begun::kYes : Begun::kNo;
    if (can_all && staged_bytes != 0) begun = reserve(op, staged_bytes, stage);
    if (begun != Begun::kYes) {
      Process::get()->imports.end_use();
      return begun;
    }
    op.lane = lane;
    op.lane_first = lane->ticket();
  }
  if (op.peer != peer_ || local_.size() + op.local.pieces.size() > kMaxChainPieces) flush();
  peer_ = op.peer;
  const size_t before = local_.size();
  for_each_chunk(op, [&](const Chunk& chunk) {
    AreaAddress here, there;
    if (!is_between_hosts(chunk)) address_own(*lane, chunk.near, chunk.near_gpu, here);
    if (is_staged(op, chunk)) {
      // Bytes that are contiguous in GPU memory are staged contiguously, so that one copy moves many
      // datagrams.
      const uint64_t origin = chunk.origin >> 32 << 32;
      lane->copy({address_segment(stage), here, chunk.bytes, origin, true});
      op.staged.push_back({stage, chunk.bytes});
      op.staged_to.push_back({reinterpret_cast<void*>(chunk.far), chunk.bytes});
      stage += chunk.bytes;
    } else if (!is_between_hosts(chunk)) {
      address_remote(op, lane, chunk.far, chunk.far_gpu, there);
      lane->copy({there, here, chunk.bytes, chunk.origin, true});
    } else if (op.peer->is_self) {
      copy_inorder(reinterpret_cast<void*>(chunk.far), reinterpret_cast<const void*>(chunk.near),
                   chunk.bytes);
    } else {
      write_host({reinterpret_cast<void*>(chunk.near), chunk.bytes}, chunk.far,
                 static_cast<uint32_t>(chunk.origin));
    }
    return true;
  });
  if (local_.size() != before) operations_.push_back(&op);
  if (op.lane != nullptr) op.lane_last = lane->ticket();
  return Begun::kYes;
}

void DatagramChain::land(Operation& op) {
  if (op.staged.empty()) return;
  --staged_operations_;
  if (op.is_broken) return;
  if (op.peer != peer_ || local_.size() + op.staged.size() > kMaxChainPieces) flush();
  peer_ = op.peer;
  const size_t before = local_.size();
  for (size_t i = 0; i < op.staged.size(); ++i) {
    write_host(op.staged[i], reinterpret_cast<uint64_t>(op.staged_to[i].iov_base), op.remote.keys.back());
  }
  if (local_.size() != before) operations_.push_back(&op);
}

void DatagramChain::write_host(const iovec& from, uint64_t to, uint32_t key) {
  if (uint8_t* const near = find_near(*peer_, to, from.iov_len, key); near != nullptr) {
    copy_inorder(near, from.iov_base, from.iov_len);
    return;
  }
  local_.push_back(from);
  remote_.push_back({reinterpret_cast<void*>(to), from.iov_len});
}

// If a peer has died, or unmapped its registered memory, only its own receives are invalid.
void DatagramChain::flush() {
  if (!local_.empty() && write_in_any_order(peer_->pid, remote_, local_) != 0)
    for (Operation* op : operations_) op->fits = false;
  local_.clear();
  remote_.clear();
  operations_.clear();
}

}  // namespace verbena::softverbs
