#include "softverbs/faults/gate.h"

#include "softverbs/engine/events.h"
#include "softverbs/engine/memory_window.h"
#include "softverbs/engine/queue_pair.h"
#include "softverbs/faults/injector.h"
#include "softverbs/shared/clock.h"

namespace verbena::softverbs::faults {
namespace {

const Fate& get_fate(Qp& qp, const SendRequest& request) {
  return Process::get()->injector->get_fate(qp, request);
}

// Moves the queue pair at the other end to the error state, if it exists and is connected to this one.
void fail_far_end(Qp& qp) {
  PeerProcess* peer = qp.peer;
  if (peer == nullptr || peer->dead.load(std::memory_order_acquire)) return;
  const uint32_t number = qp.attributes.dest_qp_num;
  SharedQp& target = peer->segment->qp(get_qp_index(number));
  target.started.fetch_add(1);
  if (target.number.load(std::memory_order_acquire) == number && target.peer_number.get() == qp.base.qp_num)
    fail_target(*peer, get_qp_index(number), IBV_EVENT_QP_FATAL);
  target.finished.fetch_add(1, std::memory_order_release);
}

// Returns whether the peer itself detects the failure. In this case the request is executed up to the point
// where it takes a receive.
bool is_found_by_peer(const Qp& qp, const Fate& fate) {
  PeerFailure failure{};
  return !qp.is_wired && fate.fails_far && find_peer_failure(fate.failure, failure);
}

bool may_be_struck(const Qp& qp) {
  return qp.base.qp_type == IBV_QPT_UD && Process::get()->injector->strikes_datagrams();
}

// The bytes of the datagram are read, and its target is looked up, when the datagram is sent.
StepOutcome prepare_struck(Operation& op, Qp& qp, SendRequest& request) {
  op.qp = &qp;
  op.request = &request;
  op.peer = nullptr;
  op.source_qp = qp.base.qp_num;
  op.is_datagram = op.is_struck = true;
  op.is_wired = false;
  op.lane = nullptr;
  op.bytes = 0;
  op.remote.clear();
  return gather_local(op) ? StepOutcome{} : StepOutcome{Step::kFail, IBV_WC_LOC_PROT_ERR};
}

}  // namespace

uint64_t stamp_post() {
  return Process::get()->injector->has_delays() ? read_clock_ns() : 0;
}

StepOutcome take_datagram(Operation& op) {
  Injector& injector = *Process::get()->injector;
  injector.held().take(op, get_fate(*op.qp, *op.request));
  return {};
}

bool needs_worker(const Qp& qp) {
  return may_be_struck(qp) && Process::get()->gpu_memory.is_any_registered();
}

void note_datagram(const Operation& op) {
  if (may_be_struck(*op.qp)) Process::get()->injector->held().note_left(op.qp->device);
}

void end_run(const Qp& qp) {
  if (may_be_struck(qp)) Process::get()->injector->held().send_due(qp.device);
}

StepOutcome check_start(Qp& qp, const SendRequest& request) {
  const Fate& fate = get_fate(qp, request);
  if (fate.due_ns != 0 && fate.due_ns > read_clock_ns()) return {Step::kWait, IBV_WC_SUCCESS, Wait::kDelayed};
  if (fate.failure == IBV_WC_SUCCESS || fate.is_after_work || is_found_by_peer(qp, fate)) return {};
  if (fate.is_queue_fatal) qp.faults->owes_fatal_event.store(true);
  return {Step::kFail, fate.failure};
}

StepOutcome prepare_request(Operation& op, Qp& qp, SendRequest& request) {
  const StepOutcome start = check_start(qp, request);
  if (start.step != Step::kDone) {
    op.qp = &qp;
    op.request = &request;
    op.lane = nullptr;
    op.local.clear();
    op.remote.clear();
    return start;
  }
  const Fate& fate = get_fate(qp, request);
  if (fate.is_changed() && fate.failure == IBV_WC_SUCCESS) return prepare_struck(op, qp, request);
  const StepOutcome outcome = prepare(op, qp, request);
  if (outcome.step != Step::kDone || !is_found_by_peer(qp, fate)) return outcome;
  return {Step::kFail, fate.failure};
}

void strike_far_end(Qp& qp, const SendRequest& request) {
  const Fate& fate = get_fate(qp, request);
  const bool is_struck =
      !qp.is_wired && fate.failure != IBV_WC_SUCCESS && !fate.is_after_work && fate.fails_far;
  if (is_struck && !is_found_by_peer(qp, fate)) fail_far_end(qp);
}

bool fails_far_end(Qp& qp, const SendRequest& request) {
  const Fate& fate = get_fate(qp, request);
  return fate.failure != IBV_WC_SUCCESS && fate.fails_far;
}

uint64_t get_delay_ns(Qp& qp, const SendRequest& request) {
  const uint64_t due_ns = get_fate(qp, request).due_ns, now_ns = read_clock_ns();
  return due_ns > now_ns ? due_ns - now_ns : 0;
}

ibv_wc_status get_late_failure(Qp& qp, const SendRequest& request) {
  const Fate& fate = get_fate(qp, request);
  return fate.is_after_work ? fate.failure : IBV_WC_SUCCESS;
}

bool drops_completion(Qp& qp, const SendRequest& request) {
  return !is_local(request.opcode) && get_fate(qp, request).is_dropped;
}

void report_error(Qp& qp) {
  if (!qp.faults->owes_fatal_event.exchange(false)) return;
  raise_async(Process::get()->self(), qp.shared->context.get(), qp.shared->token.get(), IBV_EVENT_QP_FATAL);
}

void forget_requests(Qp& qp) {
  qp.faults->fates.clear();
}

}  // namespace verbena::softverbs::faults
