#include "softverbs/datagram.h"

#include <cstring>

#include "softverbs/faults/rails.h"
#include "softverbs/memory_region.h"
#include "softverbs/queue_pair.h"
#include "softverbs/wire/requester.h"
#include "softverbs/wire/wire.h"

namespace verbena::softverbs {
namespace {

constexpr uint32_t kPrivilegedQkey = 1u << 31;  // such a key in a request means: the queue pair's own

void fill_header(Operation& op, const Ah& handle) {
  ibv_grh header{};
  header.version_tclass_flow = htobe32(6u << 28);
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

Outcome prepare_datagram(Operation& op) {
  const Ah& handle = *reinterpret_cast<const Ah*>(op.request->address_handle);
  op.remote.clear();
  op.bytes = 0;  // lost, unless it arrives
  if (faults::is_down(Process::get()->segment(), op.qp->device)) return {};
  if (!handle.is_local && wire::get_wire() != nullptr) {
    wire::send_datagram(op, handle);
    return {};
  }
  if (!find_target(op, handle)) return {};
  op.mark();
  Segment& segment = *op.peer->segment;
  SharedReceiveQueue& queue = segment.receive_queue(op.target->receive_queue.get());
  if (!is_accepted(op, handle) || !pop_receive(segment, queue, op.target_index, op.receive, Take::kFlush)) {
    op.unmark();
    return {};
  }
  op.has_receive = true;
  fill_header(op, handle);
  Memory payload;
  std::swap(payload, op.local);
  op.local.add(reinterpret_cast<uint64_t>(op.header), sizeof(op.header), 0, 0);
  for (size_t i = 0; i < payload.pieces.size(); ++i) {
    op.local.add(reinterpret_cast<uint64_t>(payload.pieces[i].iov_base), payload.pieces[i].iov_len,
                 payload.gpus[i], payload.keys[i]);
  }
  op.bytes = op.request->length + sizeof(op.header);
  op.fits = scatter_datagram(op);
  if (!op.fits) op.bytes = 0;
  return {};
}

}  // namespace verbena::softverbs
