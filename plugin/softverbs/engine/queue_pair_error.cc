#include <sched.h>

#include "softverbs/engine/events.h"
#include "softverbs/engine/queue_pair.h"
#include "softverbs/faults/gate.h"
#include "softverbs/shared/clock.h"
#include "softverbs/wire/end.h"
#include "softverbs/wire/wire.h"

namespace verbena::softverbs {
namespace {

void raise(PeerProcess& peer, const SharedQp& qp, ibv_event_type type) {
  raise_async(peer, qp.context.get(), qp.token.get(), type);
}

bool draws_from_shared(Segment& segment, const SharedQp& qp) {
  return segment.receive_queue(qp.receive_queue.get()).is_shared.get() != 0;
}

// Takes the receive of a message that a dead peer did not finish. A live peer completes its receives itself.
bool claim_open_receive(SharedQp& qp, Completion& completion) {
  uint32_t closed = qp.receives_closed.load();
  for (uint32_t opened; closed != (opened = qp.receives_opened.load());) {
    if (opened - closed > kOpenReceives) {  // impossible: the peer wrote wrong counts
      qp.receives_closed.store(closed = opened - kOpenReceives);
    }
    const uint64_t wr_id = qp.open_receives[closed % kOpenReceives].wr_id.get();
    if (!qp.receives_closed.compare_exchange_weak(closed, closed + 1)) continue;
    completion.wr_id = wr_id;
    completion.receive = kReceive | (closed & kReceiveCountMask);
    return true;
  }
  return false;
}

Completion make_flushed(const SharedQp& qp) {
  Completion completion{};
  completion.status = IBV_WC_WR_FLUSH_ERR;
  completion.opcode = IBV_WC_RECV;
  completion.qp_number = qp.number.load();
  completion.life = qp.life.get();
  return completion;
}

// Returns the number of requests that the peer has begun here. When these have ended, the peer is quiet.
uint32_t begin_quiet(Qp& qp) {
  if (qp.wire != nullptr) wire::get_wire()->quiesce();
  return qp.shared->started.fetch_add(0);
}

bool takes_datagrams(const Qp& qp) {
  return qp.base.qp_type == IBV_QPT_UD;
}

uint64_t find_deadline_ns(const Qp& qp) {
  return read_clock_ns() + get_patience_ns(qp.base.qp_type);
}

bool is_peer_dead(const Qp& qp) {
  return qp.peer == nullptr || qp.peer->dead.load(std::memory_order_acquire);
}

// Returns whether the peer is quiet. Datagrams come from many senders, and later ones may end before earlier
// ones, so this looks for a moment without any outstanding datagram. Datagrams that begin later see the queue
// pair closed.
bool is_quiet(const Qp& qp, uint32_t started) {
  if (takes_datagrams(qp)) {
    const uint32_t finished = qp.shared->finished.load(std::memory_order_acquire);
    return qp.shared->started.load() == finished;
  }
  return static_cast<int32_t>(qp.shared->finished.load(std::memory_order_acquire) - started) >= 0 ||
         is_peer_dead(qp);
}

// Finishes the work of a peer that was killed.
void recover_from_dead(Qp& qp, uint32_t started) {
  if (takes_datagrams(qp)) {
    const uint32_t finished = qp.shared->finished.load();
    qp.shared->finished.fetch_add(qp.shared->started.load() - finished);
    return;
  }
  if (!is_peer_dead(qp)) return;
  Segment& segment = Process::get()->segment();
  recover_receives(segment, segment.receive_queue(qp.shared->receive_queue.get()), qp.index);
  qp.shared->finished.store(started);
}

}  // namespace

ErrorTransition begin_error(Qp& qp) {
  const bool was_in_error = qp.shared->state.exchange(IBV_QPS_ERR) == IBV_QPS_ERR;
  return {was_in_error, begin_quiet(qp), find_deadline_ns(qp)};
}

bool end_error(Qp& qp, const ErrorTransition& transition) {
  if (!is_quiet(qp, transition.started) && read_clock_ns() <= transition.deadline_ns) return false;
  recover_from_dead(qp, transition.started);
  if (qp.wire != nullptr) wire::forget_inbound(qp, false);
  PeerProcess& self = Process::get()->self();
  Completion completion = make_flushed(*qp.shared);
  while (claim_open_receive(*qp.shared, completion)) {
    complete(self, qp.shared->receive_cq.get(), completion, true);
  }
  flush_receives(self, qp.index);
  if (qp.faults != nullptr) faults::report_error(qp);
  if (!transition.was_in_error && qp.base.srq != nullptr)
    raise(self, *qp.shared, IBV_EVENT_QP_LAST_WQE_REACHED);
  return true;
}

// If the worker has the queue pair in its list, the worker flushes it in its next pass, within a millisecond.
void enter_error(Qp& qp) {
  const ErrorTransition transition = begin_error(qp);
  while (!end_error(qp, transition)) sched_yield();
}

void fail_target(PeerProcess& peer, uint32_t qp_index, ibv_event_type event) {
  SharedQp& target = peer.segment->qp(qp_index);
  uint32_t state = target.state.load();
  while (state != IBV_QPS_ERR) {
    if (state == IBV_QPS_RESET || state == IBV_QPS_INIT) return;
    if (target.state.compare_exchange_weak(state, IBV_QPS_ERR)) break;
  }
  flush_receives(peer, qp_index);
  if (state == IBV_QPS_ERR) return;
  raise(peer, target, event);
  if (draws_from_shared(*peer.segment, target)) raise(peer, target, IBV_EVENT_QP_LAST_WQE_REACHED);
}

void flush_receives(PeerProcess& peer, uint32_t qp_index) {
  Segment& segment = *peer.segment;
  SharedQp& target = segment.qp(qp_index);
  if (draws_from_shared(segment, target)) return;  // other queue pairs also use its receives
  Completion completion = make_flushed(target);
  ReceiveRequest request;
  SharedReceiveQueue& queue = segment.receive_queue(target.receive_queue.get());
  for (uint32_t flushed = 0; flushed < kMaxReceiveSlots; ++flushed) {
    if (!pop_receive(segment, queue, qp_index, request, Take::kAtOnce)) break;
    completion.wr_id = request.wr_id;
    completion.receive = request.receive;
    complete(peer, target.receive_cq.get(), completion, true);
  }
}

void wait_until_quiet(Qp& qp) {
  const uint64_t deadline_ns = find_deadline_ns(qp);
  const uint32_t started = begin_quiet(qp);
  while (!is_quiet(qp, started) && read_clock_ns() <= deadline_ns) sched_yield();
  recover_from_dead(qp, started);
}

}  // namespace verbena::softverbs
