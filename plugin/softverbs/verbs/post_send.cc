#include <cerrno>

#include "softverbs/engine/memory_window.h"
#include "softverbs/engine/queue_pair.h"
#include "softverbs/faults/gate.h"
#include "softverbs/shared/profile.h"

namespace verbena::softverbs {
namespace {

bool is_known(const Qp& qp, ibv_wr_opcode opcode) {
  switch (opcode) {
    case IBV_WR_SEND:
    case IBV_WR_SEND_WITH_IMM:
      return true;
    case IBV_WR_RDMA_WRITE:
    case IBV_WR_RDMA_WRITE_WITH_IMM:
      return qp.base.qp_type != IBV_QPT_UD;
    case IBV_WR_SEND_WITH_INV:
    case IBV_WR_BIND_MW:
    case IBV_WR_LOCAL_INV:
    case IBV_WR_ATOMIC_WRITE:
    case IBV_WR_RDMA_READ:
      return qp.base.qp_type == IBV_QPT_RC;
    case IBV_WR_ATOMIC_CMP_AND_SWP:
    case IBV_WR_ATOMIC_FETCH_AND_ADD:
      return qp.base.qp_type == IBV_QPT_RC && get_profile().has_atomics;
    default:
      return false;
  }
}

bool needs_word(ibv_wr_opcode opcode) {
  return is_atomic(opcode) || opcode == IBV_WR_ATOMIC_WRITE;
}

int check_request(const Qp& qp, const ibv_send_wr& request, uint64_t length) {
  if (!is_known(qp, request.opcode) || request.num_sge < 0) return EINVAL;
  if (request.num_sge > static_cast<int>(qp.send_queue.max_sge())) return EINVAL;
  if (is_local(request.opcode))
    return length != 0 || (request.send_flags & IBV_SEND_INLINE) != 0 ? EINVAL : 0;
  if (needs_word(request.opcode) && length != sizeof(uint64_t)) return EINVAL;
  if (length == 0 && request.opcode == IBV_WR_RDMA_WRITE && !qp.takes_empty_writes) return EINVAL;
  const uint64_t longest = qp.base.qp_type != IBV_QPT_UD                   ? qp.max_message_bytes
                           : (request.send_flags & kSendLongDatagram) != 0 ? kMaxDatagramBytes
                                                                           : kMtuBytes;
  if ((request.send_flags & IBV_SEND_INLINE) == 0) return length > longest ? EINVAL : 0;
  if (request.opcode == IBV_WR_RDMA_READ || is_atomic(request.opcode) || length > qp.send_queue.max_inline())
    return EINVAL;
  return 0;
}

void copy_inline(Qp& qp, SendRequest& stored, const ibv_send_wr& request) {
  uint8_t* to = qp.send_queue.get_inline(stored);
  for (int i = 0; i < request.num_sge; ++i) {
    const ibv_sge& sge = request.sg_list[i];
    if (sge.length == 0) continue;
    memcpy(to, reinterpret_cast<const void*>(sge.addr), sge.length);
    to += sge.length;
  }
  stored.inline_bytes = static_cast<uint32_t>(stored.length);
  if (qp.spoils_inline_writes && stored.length != 0 && request.opcode == IBV_WR_RDMA_WRITE)
    qp.send_queue.get_inline(stored)[0] ^= 0xff;
}

bool needs_address(ibv_wr_opcode opcode) {
  return opcode == IBV_WR_RDMA_WRITE || opcode == IBV_WR_RDMA_WRITE_WITH_IMM || opcode == IBV_WR_RDMA_READ ||
         opcode == IBV_WR_ATOMIC_WRITE;
}

void copy_destination(const Qp& qp, SendRequest& stored, const ibv_send_wr& request) {
  if (qp.base.qp_type == IBV_QPT_UD) {
    stored.address_handle = request.wr.ud.ah;
    stored.remote_qp = request.wr.ud.remote_qpn;
    stored.remote_qkey = request.wr.ud.remote_qkey;
  } else if (is_atomic(request.opcode)) {
    stored.remote_address = request.wr.atomic.remote_addr;
    stored.rkey = request.wr.atomic.rkey;
    stored.compare_add = request.wr.atomic.compare_add;
    stored.swap = request.wr.atomic.swap;
  } else if (request.opcode == IBV_WR_BIND_MW) {
    const ibv_mw_bind_info& info = request.bind_mw.bind_info;
    const ibv_mw& window = *request.bind_mw.mw;
    stored.rkey = request.bind_mw.rkey;
    stored.bind = {
        info.addr,  info.length, window.rkey, info.mr != nullptr ? info.mr->lkey : 0, info.mw_access_flags,
        window.type};
  } else if (needs_address(request.opcode)) {
    stored.remote_address = request.wr.rdma.remote_addr;
    stored.rkey = request.wr.rdma.rkey;
  }
}

}  // namespace

// Reads only the members that the opcode uses, because the struct with which NCCL was compiled is shorter
// than this one.
int append(Qp& qp, const ibv_send_wr& request) {
  uint64_t length = 0;
  for (int i = 0; i < request.num_sge; ++i) length += request.sg_list[i].length;
  if (const int error = check_request(qp, request, length); error != 0) return error;
  SendQueue& queue = qp.send_queue;
  if (queue.posted - qp.shared->send_retired.load(std::memory_order_acquire) >= queue.capacity())
    return ENOMEM;
  SendRequest& stored = queue.at(queue.posted);
  stored = {};
  stored.number = queue.posted;
  if (qp.faults != nullptr) [[unlikely]]
    stored.posted_ns = faults::stamp_post();
  stored.wr_id = request.wr_id;
  stored.opcode = request.opcode;
  stored.flags = request.send_flags;
  stored.immediate = request.imm_data;
  stored.length = length;
  copy_destination(qp, stored, request);
  if ((request.send_flags & IBV_SEND_INLINE) != 0) {
    copy_inline(qp, stored, request);
  } else {
    stored.sge_count = static_cast<uint32_t>(request.num_sge);
    if (stored.sge_count > 0)
      memcpy(queue.get_sges(stored), request.sg_list, stored.sge_count * sizeof(ibv_sge));
  }
  if (request.opcode == IBV_WR_BIND_MW) request.bind_mw.mw->rkey = request.bind_mw.rkey;
  ++queue.posted;
  return 0;
}

int check_can_post(const Qp& qp) {
  const ibv_qp_state state = get_state(*qp.shared);
  return state == IBV_QPS_RESET || state == IBV_QPS_INIT || state == IBV_QPS_RTR ? EINVAL : 0;
}

int post_send(ibv_qp* base, ibv_send_wr* request, ibv_send_wr** bad) {
  Qp& qp = get_qp(base);
  std::unique_lock lock(qp.mutex);
  int error = check_can_post(qp);
  while (error == 0 && request != nullptr) {
    error = append(qp, *request);
    if (error == 0) request = request->next;
  }
  if (error != 0) *bad = request;
  run_send_queue(qp, Runner::kPoster, lock);
  return error;
}

int post_receive(ibv_qp* base, ibv_recv_wr* request, ibv_recv_wr** bad) {
  Qp& qp = get_qp(base);
  if (base->srq != nullptr || get_state(*qp.shared) == IBV_QPS_RESET) {
    *bad = request;
    return EINVAL;
  }
  const int error = post_receives(qp.receive_queue, request, bad);
  // Posts first and reads the state second; enter_error() does it in the opposite order, so that one of the
  // two flushes the request.
  if (qp.shared->state.fetch_add(0) == IBV_QPS_ERR) flush_receives(Process::get()->self(), qp.index);
  return error;
}

}  // namespace verbena::softverbs
