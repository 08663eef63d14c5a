#include "softverbs/executor.h"

#include <algorithm>
#include <cerrno>

#include "softverbs/events.h"
#include "softverbs/memory_region.h"

namespace verbena::softverbs {
namespace {

constexpr uint64_t kChunkBytes = 4 << 20;  // between two looks at whether the queue pair still works

Outcome fail(ibv_wc_status status) {
  return {Step::kFail, status};
}
constexpr Outcome kDone{Step::kDone};

// Marks the peer's queue pair while we touch its owner's memory. The owner clears the way first (a key, a
// state), then looks at the mark; we set the mark first, then look: one of the two always sees the other.
class TargetMark {
 public:
  TargetMark(SharedQp& target, uint32_t number) : target_(target) {
    uint32_t nobody = 0;
    is_set_ = target.busy.compare_exchange_strong(nobody, number);
  }
  ~TargetMark() {
    if (is_set_) target_.busy.store(0, std::memory_order_release);
  }
  TargetMark(const TargetMark&) = delete;
  TargetMark& operator=(const TargetMark&) = delete;
  bool is_set() const { return is_set_; }

 private:
  SharedQp& target_;
  bool is_set_;
};

struct Operation {
  Qp& qp;
  SendRequest& request;
  Peer& peer;
  SharedQp& target;
  uint32_t target_index;
  Pieces local, remote;

  Segment& segment() const { return *peer.segment; }
  int pid() const { return peer.is_self ? 0 : peer.pid; }
};

bool needs_receive(ibv_wr_opcode opcode) {
  return opcode == IBV_WR_SEND || opcode == IBV_WR_SEND_WITH_IMM || opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
}
bool is_send(ibv_wr_opcode opcode) {
  return opcode == IBV_WR_SEND || opcode == IBV_WR_SEND_WITH_IMM;
}

// False on a protection error of the gather list.
bool gather_local(Qp& qp, const SendRequest& request, Pieces& pieces) {
  pieces.clear();
  if ((request.flags & IBV_SEND_INLINE) != 0) {
    pieces.push_back({qp.send_queue.get_inline(request), request.inline_bytes});
    return true;
  }
  const uint32_t access = request.opcode == IBV_WR_RDMA_READ ? IBV_ACCESS_LOCAL_WRITE : 0;
  Segment& own = Process::get()->segment();
  const ibv_sge* sges = qp.send_queue.get_sges(request);
  for (uint32_t i = 0; i < request.sge_count; ++i) {
    if (sges[i].length == 0) continue;
    const uint64_t address =
        translate(own, {sges[i].addr, sges[i].length, sges[i].lkey, qp.shared->pd.get(), access});
    if (address == 0) return false;
    pieces.push_back({reinterpret_cast<void*>(address), sges[i].length});
  }
  return true;
}

Outcome wait_for_peer(const Qp& qp) {
  Outcome outcome{Step::kWait, IBV_WC_RETRY_EXC_ERR, Wait::kPeerNotReady};
  const uint32_t exponent = qp.attributes.timeout;
  if (exponent != 0) outcome.budget_ns = (uint64_t{4096} << exponent) * (qp.attributes.retry_cnt + 1u);
  return outcome;
}

Outcome wait_for_receive(const Qp& qp, uint32_t timer) {
  constexpr uint32_t kTimerUnits[32] = {65536, 1,    2,    3,    4,    6,     8,     12,    16,    24,   32,
                                        48,    64,   96,   128,  192,  256,   384,   512,   768,   1024, 1536,
                                        2048,  3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152};
  constexpr uint64_t kUnitNs = 10'000;
  constexpr uint32_t kForever = 7;
  const uint32_t retries = qp.attributes.rnr_retry;
  if (retries == 0) return fail(IBV_WC_RNR_RETRY_EXC_ERR);
  Outcome outcome{Step::kWait, IBV_WC_RNR_RETRY_EXC_ERR, Wait::kReceiverNotReady};
  if (retries != kForever) outcome.budget_ns = retries * kTimerUnits[timer & 31] * kUnitNs;
  return outcome;
}

// Whether the target listens to us. A peer that is not there yet is waited for; one that was there and left
// is not.
Outcome check_target(const Operation& op) {
  const SharedQp& target = op.target;
  if (op.peer.dead.load(std::memory_order_acquire)) return fail(IBV_WC_RETRY_EXC_ERR);
  if (target.number.load(std::memory_order_acquire) != op.qp.attributes.dest_qp_num)
    return fail(IBV_WC_RETRY_EXC_ERR);
  const ibv_qp_state state = get_state(target);
  if (state == IBV_QPS_RESET || state == IBV_QPS_INIT) return wait_for_peer(op.qp);
  const bool is_ours = target.peer_number.get() == op.qp.base.qp_num && target.type.get() == IBV_QPT_RC;
  return state == IBV_QPS_ERR || !is_ours ? fail(IBV_WC_RETRY_EXC_ERR) : kDone;
}

Outcome fail_remote(Operation& op, ibv_wc_status status, ibv_event_type event) {
  fail_target(op.peer, op.target_index, event);
  return fail(status);
}

void complete_receive(Operation& op, ibv_wc_status status) {
  const SendRequest& request = op.request;
  Completion completion{};
  completion.wr_id = op.qp.receive.wr_id;
  completion.status = status;
  completion.opcode = is_send(request.opcode) ? IBV_WC_RECV : IBV_WC_RECV_RDMA_WITH_IMM;
  completion.byte_length = static_cast<uint32_t>(request.length);
  if (request.opcode != IBV_WR_SEND) {
    completion.flags = IBV_WC_WITH_IMM;
    completion.immediate = request.immediate;
  }
  completion.qp_number = op.qp.attributes.dest_qp_num;
  completion.source_qp = op.qp.base.qp_num;
  completion.life = op.target.life.get();
  completion.receive_count = op.qp.receive.count;
  const bool is_solicited = (request.flags & IBV_SEND_SOLICITED) != 0 || status != IBV_WC_SUCCESS;
  complete(op.peer, op.target.receive_cq.get(), completion, is_solicited);
  op.target.receive_open.store(0, std::memory_order_release);
}

void raise_limit(Operation& op, SharedReceiveQueue& queue) {
  const uint32_t limit = queue.limit.load(std::memory_order_relaxed);
  if (limit == 0 || count_receives(queue) >= limit || queue.limit.exchange(0) == 0) return;
  raise_async(op.peer, queue.context.get(), queue.token.get(), IBV_EVENT_SRQ_LIMIT_REACHED);
}

bool take_receive(Operation& op) {
  SharedReceiveQueue& queue = op.segment().receive_queue(op.target.receive_queue.get());
  if (!pop_receive(op.segment(), queue, op.target_index, op.qp.receive, Keep::kOpen)) return false;
  if (queue.is_shared.get() != 0) raise_limit(op, queue);
  return true;
}

// The scatter list of the receive that was taken; its own errors complete it.
Outcome scatter_remote(Operation& op) {
  const SharedReceiveQueue& queue = op.segment().receive_queue(op.target.receive_queue.get());
  op.remote.clear();
  uint64_t left = op.request.length;
  for (const SharedSge& sge : op.qp.receive.sges) {
    if (left == 0) break;
    const uint64_t take = std::min<uint64_t>(left, sge.length);
    if (take == 0) continue;
    const uint64_t address =
        translate(op.segment(), {sge.address, sge.length, sge.lkey, queue.pd.get(), IBV_ACCESS_LOCAL_WRITE});
    if (address == 0) {
      complete_receive(op, IBV_WC_LOC_PROT_ERR);
      return fail_remote(op, IBV_WC_REM_OP_ERR, IBV_EVENT_QP_FATAL);
    }
    op.remote.push_back({reinterpret_cast<void*>(address), take});
    left -= take;
  }
  if (left == 0) return kDone;
  complete_receive(op, IBV_WC_LOC_LEN_ERR);
  return fail_remote(op, IBV_WC_REM_INV_REQ_ERR, IBV_EVENT_QP_REQ_ERR);
}

uint32_t get_needed_access(ibv_wr_opcode opcode) {
  switch (opcode) {
    case IBV_WR_RDMA_READ:
      return IBV_ACCESS_REMOTE_READ;
    case IBV_WR_ATOMIC_CMP_AND_SWP:
    case IBV_WR_ATOMIC_FETCH_AND_ADD:
      return IBV_ACCESS_REMOTE_ATOMIC;
    default:
      return IBV_ACCESS_REMOTE_WRITE;
  }
}

// The memory that the request names by a remote key.
Outcome name_remote(Operation& op) {
  const SendRequest& request = op.request;
  op.remote.clear();
  if (request.opcode == IBV_WR_RDMA_READ && op.target.max_reads.get() == 0) {
    return fail_remote(op, IBV_WC_REM_INV_REQ_ERR, IBV_EVENT_QP_REQ_ERR);
  }
  const uint32_t access = get_needed_access(request.opcode);
  if (request.length == 0) return kDone;
  uint64_t address = 0;
  if ((op.target.access.get() & access) != 0) {
    address = translate(op.segment(),
                        {request.remote_address, request.length, request.rkey, op.target.pd.get(), access});
  }
  if (address == 0) return fail_remote(op, IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR);
  op.remote.push_back({reinterpret_cast<void*>(address), request.length});
  return kDone;
}

Outcome explain_copy_error(Operation& op, int error) {
  if (error == ESRCH) return fail(IBV_WC_RETRY_EXC_ERR);  // the peer is gone
  return fail_remote(op, IBV_WC_REM_OP_ERR, IBV_EVENT_QP_FATAL);
}

Outcome copy(Operation& op) {
  const bool is_read = op.request.opcode == IBV_WR_RDMA_READ;
  const auto move = is_read ? read_pieces : write_pieces;
  const uint64_t bytes = op.request.length;
  if (bytes <= kChunkBytes) {
    const int error = bytes == 0 ? 0 : move(op.pid(), op.remote, op.local);
    return error == 0 ? kDone : explain_copy_error(op, error);
  }
  for (uint64_t done = 0; done < bytes; done += kChunkBytes) {
    const ibv_qp_state state = get_state(*op.qp.shared);
    if (state == IBV_QPS_ERR || state == IBV_QPS_RESET) return fail(IBV_WC_WR_FLUSH_ERR);
    if (get_state(op.target) == IBV_QPS_ERR) return fail(IBV_WC_RETRY_EXC_ERR);
    const uint64_t take = std::min(kChunkBytes, bytes - done);
    const int error = move(op.pid(), slice_pieces(op.remote, done, take), slice_pieces(op.local, done, take));
    if (error != 0) return explain_copy_error(op, error);
  }
  return kDone;
}

}  // namespace

Outcome execute(Qp& qp, SendRequest& request) {
  if (qp.peer == nullptr) return fail(IBV_WC_RETRY_EXC_ERR);
  const uint32_t target_index = get_qp_index(qp.attributes.dest_qp_num);
  Operation op{qp, request, *qp.peer, qp.peer->segment->qp(target_index), target_index, {}, {}};
  if (!gather_local(qp, request, op.local)) return fail(IBV_WC_LOC_PROT_ERR);
  if (const Outcome early = check_target(op); early.step != Step::kDone) return early;
  const TargetMark mark(op.target, qp.base.qp_num);
  if (!mark.is_set()) return wait_for_peer(qp);
  if (const Outcome marked = check_target(op); marked.step != Step::kDone) return marked;

  if (!is_send(request.opcode)) {
    if (const Outcome named = name_remote(op); named.step != Step::kDone) return named;
  }
  if (needs_receive(request.opcode) && !take_receive(op)) {
    return wait_for_receive(qp, op.target.min_rnr_timer.get());
  }
  if (is_send(request.opcode)) {
    if (const Outcome scattered = scatter_remote(op); scattered.step != Step::kDone) return scattered;
  }
  const Outcome copied = copy(op);
  if (copied.step == Step::kDone && needs_receive(request.opcode)) complete_receive(op, IBV_WC_SUCCESS);
  return copied;
}

}  // namespace verbena::softverbs
