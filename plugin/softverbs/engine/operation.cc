#include "softverbs/engine/operation.h"

#include <algorithm>
#include <cerrno>
#include <new>
#include <utility>

#include "softverbs/engine/datagram.h"
#include "softverbs/engine/events.h"
#include "softverbs/engine/memory_region.h"
#include "softverbs/engine/memory_window.h"
#include "softverbs/engine/queue_pair.h"
#include "softverbs/faults/rails.h"

namespace verbena::softverbs {
namespace {

constexpr uint64_t kChunkBytes = 4 << 20;  // after each chunk, the state of the queue pair is checked

StepOutcome fail(ibv_wc_status status) {
  return {Step::kFail, status};
}
constexpr StepOutcome kDone{};

bool needs_receive(ibv_wr_opcode opcode) {
  return is_send(opcode) || opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
}

}  // namespace

bool is_send(ibv_wr_opcode opcode) {
  return opcode == IBV_WR_SEND || opcode == IBV_WR_SEND_WITH_IMM || opcode == IBV_WR_SEND_WITH_INV;
}

bool gather_local(Operation& op) {
  Qp& qp = *op.qp;
  const SendRequest& request = *op.request;
  op.local.clear();
  if ((request.flags & IBV_SEND_INLINE) != 0) {
    op.local.add(reinterpret_cast<uint64_t>(qp.send_queue.get_inline(request)), request.inline_bytes, 0, 0);
    return true;
  }
  const bool is_filled = is_read(op) || is_atomic(request.opcode);
  const uint32_t access = is_filled ? IBV_ACCESS_LOCAL_WRITE : 0;
  Segment& own = Process::get()->segment();
  const ibv_sge* sges = qp.send_queue.get_sges(request);
  for (uint32_t i = 0; i < request.sge_count; ++i) {
    if (sges[i].length == 0) continue;
    const Place place =
        translate(own, {sges[i].addr, sges[i].length, sges[i].lkey, qp.shared->pd.get(), access});
    if (place.address == 0) return false;
    op.local.add(place.address, sges[i].length, place.gpu, sges[i].lkey);
  }
  return true;
}

StepOutcome wait_for_peer(const Qp& qp) {
  StepOutcome outcome{Step::kWait, IBV_WC_RETRY_EXC_ERR, Wait::kPeerNotReady};
  const uint32_t exponent = qp.attributes.timeout;
  if (exponent != 0) outcome.budget_ns = (uint64_t{4096} << exponent) * (qp.attributes.retry_cnt + 1u);
  return outcome;
}

StepOutcome wait_for_rail(const Qp& qp) {
  StepOutcome outcome = wait_for_peer(qp);
  outcome.wait = Wait::kRailDown;
  return outcome;
}

StepOutcome lose_peer() {
  StepOutcome outcome = fail(IBV_WC_RETRY_EXC_ERR);
  outcome.wait = Wait::kPeerGone;
  return outcome;
}

// Shorter than the timeouts of most applications, so that failures are seen soon.
StepOutcome wait_for_timeout(const Qp& qp) {
  constexpr uint64_t kMaxNs = 100'000'000;
  StepOutcome outcome = wait_for_peer(qp);
  outcome.wait = Wait::kPeerGone;
  outcome.budget_ns = std::min(outcome.budget_ns, kMaxNs);
  return outcome;
}

StepOutcome wait_for_receive(const Qp& qp, uint32_t timer) {
  constexpr uint32_t kTimerUnits[32] = {65536, 1,    2,    3,    4,    6,     8,     12,    16,    24,   32,
                                        48,    64,   96,   128,  192,  256,   384,   512,   768,   1024, 1536,
                                        2048,  3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152};
  constexpr uint64_t kUnitNs = 10'000;
  constexpr uint32_t kForever = 7;
  const uint32_t retries = qp.attributes.rnr_retry;
  if (retries == 0) return fail(IBV_WC_RNR_RETRY_EXC_ERR);
  StepOutcome outcome{Step::kWait, IBV_WC_RNR_RETRY_EXC_ERR, Wait::kReceiverNotReady};
  if (retries != kForever) outcome.budget_ns = retries * kTimerUnits[timer & 31] * kUnitNs;
  return outcome;
}

namespace {

// Returns whether a rail of either end is down. The common case, no rail is down, comes first.
bool is_way_down(const Operation& op) {
  const uint32_t own = Process::get()->segment().header().rails_down.load(std::memory_order_acquire);
  const uint32_t far = op.peer->segment->header().rails_down.load(std::memory_order_acquire);
  if ((own | far) == 0) [[likely]]
    return false;
  return ((own >> op.qp->device | far >> op.target->device.get()) & 1) != 0;
}

// Checks whether the target accepts requests. Waits for a peer that is not ready yet.
StepOutcome check_target(const Operation& op) {
  const SharedQp& target = *op.target;
  const Qp& qp = *op.qp;
  if (op.peer->dead.load(std::memory_order_acquire)) return wait_for_timeout(qp);
  if (is_way_down(op)) return wait_for_rail(qp);
  if (target.number.load(std::memory_order_acquire) != qp.attributes.dest_qp_num) return wait_for_timeout(qp);
  const ibv_qp_state state = get_state(target);
  if (state == IBV_QPS_RESET || state == IBV_QPS_INIT) return wait_for_peer(qp);
  const bool is_ours = target.peer_number.get() == qp.base.qp_num && target.type.get() == qp.base.qp_type;
  return state == IBV_QPS_ERR || !is_ours ? wait_for_timeout(qp) : kDone;
}

}  // namespace

void complete_receive(Operation& op, ibv_wc_status status) {
  const SendRequest& request = *op.request;
  const bool is_datagram = op.is_datagram;
  Completion completion{};
  completion.wr_id = op.receive.wr_id;
  completion.status = status;
  completion.opcode = is_send(request.opcode) ? IBV_WC_RECV : IBV_WC_RECV_RDMA_WITH_IMM;
  completion.byte_length = static_cast<uint32_t>(is_datagram ? op.bytes : request.length);
  if (is_datagram) completion.flags = IBV_WC_GRH;
  if (request.opcode != IBV_WR_SEND) {
    completion.flags |= request.opcode == IBV_WR_SEND_WITH_INV ? IBV_WC_WITH_INV : IBV_WC_WITH_IMM;
    completion.immediate = request.immediate;
  }
  completion.qp_number = op.target->number.load(std::memory_order_relaxed);
  completion.source_qp = op.source_qp;
  completion.life = op.target->life.get();
  completion.receive = op.receive.receive;
  const bool is_solicited = (request.flags & IBV_SEND_SOLICITED) != 0 || status != IBV_WC_SUCCESS;
  complete(*op.peer, op.target->receive_cq.get(), completion, is_solicited,
           is_datagram ? Order::kApart : Order::kInQueue);
  if (!is_datagram) op.target->receives_closed.fetch_add(1, std::memory_order_release);
  op.has_receive = false;
}

namespace {

void raise_limit(Operation& op, SharedReceiveQueue& queue) {
  const uint32_t limit = queue.limit.load(std::memory_order_relaxed);
  if (limit == 0 || count_receives(queue) >= limit || queue.limit.exchange(0) == 0) return;
  raise_async(*op.peer, queue.context.get(), queue.token.get(), IBV_EVENT_SRQ_LIMIT_REACHED);
}

}  // namespace

bool take_receive(Operation& op) {
  Segment& segment = *op.peer->segment;
  SharedReceiveQueue& queue = segment.receive_queue(op.target->receive_queue.get());
  op.has_receive = pop_receive(segment, queue, op.target_index, op.receive, Take::kRecorded);
  if (op.has_receive && queue.is_shared.get() != 0) raise_limit(op, queue);
  return op.has_receive;
}

namespace {

// Builds the scatter list from the pieces of the receive that was taken.
StepOutcome scatter_remote(Operation& op) {
  Segment& segment = *op.peer->segment;
  const SharedReceiveQueue& queue = segment.receive_queue(op.target->receive_queue.get());
  uint64_t left = op.request->length;
  for (const SharedSge& sge : op.receive.sges) {
    if (left == 0) break;
    const uint64_t take = std::min<uint64_t>(left, sge.length);
    if (take == 0) continue;
    const Place place =
        translate(segment, {sge.address, sge.length, sge.lkey, queue.pd.get(), IBV_ACCESS_LOCAL_WRITE});
    if (place.address == 0) return fail(IBV_WC_REM_OP_ERR);
    op.remote.add(place.address, take, place.gpu, sge.lkey);
    left -= take;
  }
  return left == 0 ? kDone : fail(IBV_WC_REM_INV_REQ_ERR);
}

}  // namespace

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

StepOutcome name_remote(Operation& op) {
  const SendRequest& request = *op.request;
  const bool has_answer = is_read(op) || is_atomic(request.opcode);
  if (has_answer && op.target->max_reads.get() == 0) return fail(IBV_WC_REM_INV_REQ_ERR);
  const bool is_word = is_atomic(request.opcode) || request.opcode == IBV_WR_ATOMIC_WRITE;
  if (is_word && request.remote_address % 8 != 0) return fail(IBV_WC_REM_INV_REQ_ERR);
  if (request.length == 0) return kDone;
  const uint32_t access = get_needed_access(request.opcode);
  if ((op.target->access.get() & access) == 0) return fail(IBV_WC_REM_ACCESS_ERR);
  const MemoryRequest memory{
      request.remote_address, request.length, request.rkey,
      op.target->pd.get(),    access,         op.target->number.load(std::memory_order_relaxed)};
  const Place place = translate(*op.peer->segment, memory);
  if (place.address == 0) return fail(IBV_WC_REM_ACCESS_ERR);
  op.remote.add(place.address, request.length, place.gpu, request.rkey);
  op.remote.is_relaxed = place.is_relaxed;
  return kDone;
}

namespace {

// If the path MTUs of the two ends differ, some packets of a longer message have the wrong length, and the
// responder rejects them.
bool has_right_packets(const Operation& op) {
  const uint32_t ours = op.qp->attributes.path_mtu, theirs = op.target->path_mtu.get();
  return ours == theirs || op.request->length <= uint64_t{128} << std::min(ours, theirs);
}

// The steps at the target's queue pair.
StepOutcome prepare_target(Operation& op) {
  const ibv_wr_opcode opcode = op.request->opcode;
  if (const StepOutcome marked = check_target(op); marked.step != Step::kDone) return marked;
  op.remote.clear();
  if (!has_right_packets(op)) return fail(IBV_WC_REM_INV_REQ_ERR);
  if (!is_send(opcode)) {
    if (const StepOutcome named = name_remote(op); named.step != Step::kDone) return named;
  }
  if (opcode == IBV_WR_SEND_WITH_INV && !can_invalidate(op)) return fail(IBV_WC_REM_INV_REQ_ERR);
  if (needs_receive(opcode) && !take_receive(op))
    return wait_for_receive(*op.qp, op.target->min_rnr_timer.get());
  return is_send(opcode) ? scatter_remote(op) : kDone;
}

StepOutcome prepare_connected(Operation& op) {
  if (op.peer == nullptr) return wait_for_timeout(*op.qp);
  op.target_index = get_qp_index(op.qp->attributes.dest_qp_num);
  op.target = &op.peer->segment->qp(op.target_index);
  if (const StepOutcome early = check_target(op); early.step != Step::kDone) return early;
  op.mark();
  const StepOutcome outcome = prepare_target(op);
  if (outcome.step != Step::kWait) return outcome;
  // The operations before this one were marked earlier. The owner's count must not reach this operation's
  // mark before theirs.
  Operation* before = op.qp->is_next_prepared ? op.qp->next.get() : nullptr;
  if (before == nullptr && !op.qp->flying.empty()) before = op.qp->flying.back().get();
  if (before != nullptr) before->marks += std::exchange(op.marks, 0);
  op.unmark();
  return outcome;
}

}  // namespace

bool find_peer_failure(ibv_wc_status status, PeerFailure& failure) {
  switch (status) {
    case IBV_WC_REM_ACCESS_ERR:
      failure = {IBV_EVENT_QP_ACCESS_ERR, IBV_WC_LOC_ACCESS_ERR};
      return true;
    case IBV_WC_REM_INV_REQ_ERR:
      failure = {IBV_EVENT_QP_REQ_ERR, IBV_WC_LOC_LEN_ERR};
      return true;
    case IBV_WC_REM_OP_ERR:
      failure = {IBV_EVENT_QP_FATAL, IBV_WC_LOC_PROT_ERR};
      return true;
    default:
      return false;
  }
}

void Operation::mark() {
  target->started.fetch_add(1);
  std::atomic<uint32_t>& group = peer->segment->header().busy_groups[target_index / kQpsPerGroup];
  if (group.load() == 0) group.store(1);
  ++marks;
}

void Operation::unmark() {
  if (marks != 0) target->finished.fetch_add(marks, std::memory_order_release);
  marks = 0;
}

void Memory::add_first(uint64_t address, uint64_t bytes) {
  pieces.insert(pieces.begin(), {reinterpret_cast<void*>(address), bytes});
  gpus.insert(gpus.begin(), 0);
  keys.insert(keys.begin(), 0);
}

bool is_atomic(ibv_wr_opcode opcode) {
  return opcode == IBV_WR_ATOMIC_CMP_AND_SWP || opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
}

bool is_read(const Operation& op) {
  return op.request->opcode == IBV_WR_RDMA_READ;
}

void Operation::reset() {
  static_cast<OperationState&>(*this) = {};
  local.clear(), remote.clear();
  receive.sges.clear();
  staged.clear(), staged_to.clear();
}

OperationPool& OperationPool::of_thread() {
  thread_local OperationPool pool;
  return pool;
}

std::unique_ptr<Operation> OperationPool::take() {
  if (spare_.empty()) return std::unique_ptr<Operation>(new (std::nothrow) Operation);
  std::unique_ptr<Operation> op = std::move(spare_.back());
  spare_.pop_back();
  op->reset();
  return op;
}

void OperationPool::give_back(std::unique_ptr<Operation> op) try {
  if (spare_.size() < kMost) spare_.push_back(std::move(op));
} catch (const std::bad_alloc&) {
  // The operation is freed.
}

void Memory::clear() {
  pieces.clear();
  gpus.clear();
  keys.clear();
  has_gpu = is_relaxed = false;
}

void Memory::add(uint64_t address, uint64_t bytes, uint32_t gpu, uint32_t key) {
  pieces.push_back({reinterpret_cast<void*>(address), bytes});
  gpus.push_back(gpu);
  keys.push_back(key);
  has_gpu = has_gpu || gpu != 0;
}

StepOutcome prepare(Operation& op, Qp& qp, SendRequest& request) try {
  op.qp = &qp;
  op.request = &request;
  op.peer = qp.peer;
  op.source_qp = qp.base.qp_num;
  op.is_datagram = qp.base.qp_type == IBV_QPT_UD;
  op.lane = nullptr;
  op.fits = true;
  op.is_wired = op.is_struck = false;
  op.change = Change::kNone;
  op.carried = nullptr;
  op.bytes = request.length;
  if (!gather_local(op)) return fail(IBV_WC_LOC_PROT_ERR);
  if (is_local(request.opcode)) return kDone;
  if (qp.base.qp_type == IBV_QPT_UD) return prepare_datagram(op);
  return settle(op, prepare_connected(op));
} catch (const std::bad_alloc&) {
  return fail(IBV_WC_LOC_QP_OP_ERR);
}

StepOutcome settle(Operation& op, const StepOutcome& outcome) {
  const bool is_reported = outcome.step == Step::kDone || outcome.status == IBV_WC_WR_FLUSH_ERR;
  if (op.qp->base.qp_type == IBV_QPT_RC || is_reported) return outcome;
  op.local.clear();
  op.remote.clear();
  op.bytes = 0;
  op.fits = false;
  return kDone;
}

StepOutcome explain_copy_error(int error) {
  // ESRCH means that the peer is gone; any other error means that its memory is not accessible.
  return error == ESRCH ? lose_peer() : fail(IBV_WC_REM_OP_ERR);
}

StepOutcome explain_failure(const Operation& op, ibv_wc_status status) {
  return fail(op.peer->dead.load(std::memory_order_acquire) ? IBV_WC_RETRY_EXC_ERR : status);
}

StepOutcome copy_host(Operation& op) {
  const auto move = is_read(op) ? read_pieces : write_pieces;
  const uint64_t bytes = op.bytes;
  if (bytes == 0) return kDone;  // a lost datagram has no peer
  const int pid = op.peer->is_self ? 0 : op.peer->pid;
  if (bytes <= kChunkBytes) {
    const int error = move(pid, op.remote.pieces, op.local.pieces);
    return error == 0 ? kDone : explain_copy_error(error);
  }
  for (uint64_t done = 0; done < bytes; done += kChunkBytes) {
    if (const StepOutcome outcome = check_progress(op); outcome.step != Step::kDone) return outcome;
    const uint64_t take = std::min(kChunkBytes, bytes - done);
    const int error =
        move(pid, slice_pieces(op.remote.pieces, done, take), slice_pieces(op.local.pieces, done, take));
    if (error != 0) return explain_copy_error(error);
  }
  return kDone;
}

StepOutcome check_progress(const Operation& op) {
  const ibv_qp_state state = get_state(*op.qp->shared);
  if (state == IBV_QPS_ERR || state == IBV_QPS_RESET) return fail(IBV_WC_WR_FLUSH_ERR);
  const bool is_gone = op.peer->dead.load(std::memory_order_acquire) || get_state(*op.target) == IBV_QPS_ERR;
  return is_gone ? lose_peer() : kDone;
}

void count_carried_out(const Qp& qp, SharedQp& target, uint64_t bytes) {
  const uint64_t mtu_bytes = uint64_t{128} << qp.attributes.path_mtu;
  const uint64_t packets = std::max<uint64_t>((bytes + mtu_bytes - 1) / mtu_bytes, 1);
  target.packets.set(target.packets.get() + static_cast<uint32_t>(packets));
}

void finish(Operation& op) {
  PeerFailure failure{};
  if (op.outcome.step == Step::kDone) {
    if (op.marks != 0) count_carried_out(*op.qp, *op.target, op.request->length);
    if (op.request->opcode == IBV_WR_SEND_WITH_INV) invalidate_remote(op);
    if (op.has_receive) complete_receive(op, op.fits ? IBV_WC_SUCCESS : IBV_WC_LOC_LEN_ERR);
  } else if (op.marks != 0 && find_peer_failure(op.outcome.status, failure)) {
    if (op.has_receive) complete_receive(op, failure.receive_status);
    fail_target(*op.peer, op.target_index, failure.event);
  } else if (op.has_receive && get_state(*op.target) == IBV_QPS_ERR) {
    complete_receive(op, IBV_WC_WR_FLUSH_ERR);
  } else if (op.has_receive && op.is_datagram) {
    complete_receive(op, IBV_WC_LOC_LEN_ERR);  // not recorded, because no other process would return it
  }
  op.has_receive = false;  // if the receive is still open, its owner flushes it with the queue pair
  op.unmark();
}

}  // namespace verbena::softverbs
