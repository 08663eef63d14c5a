#include "softverbs/wire/requester.h"

#include <algorithm>
#include <ctime>

#include "softverbs/engine/events.h"
#include "softverbs/engine/memory_window.h"
#include "softverbs/faults/gate.h"
#include "softverbs/shared/clock.h"
#include "softverbs/wire/end.h"
#include "softverbs/wire/wire.h"

namespace verbena::softverbs::wire {
namespace {

constexpr uint64_t kFirstRetryNs = 100'000, kLastRetryNs = 2'000'000;

Outbound& get_outbound(Qp& qp) {
  return qp.wire->outbound;
}

}  // namespace

void call_worker(Qp& qp, uint64_t delay_ns) {
  if (qp.is_with_worker) {
    if (delay_ns == 0) get_worker(qp.device).hurry(qp);
    return;
  }
  qp.is_with_worker = true;
  get_worker(qp.device).add(qp, delay_ns);
}

void fail_oldest(Qp& qp, ibv_wc_status status, uint64_t delay_ns) {
  Outbound& out = get_outbound(qp);
  if (out.has_failed) return;
  out.has_failed = true;
  out.report_ns = read_clock_ns() + delay_ns;
  out.failure = status;
  call_worker(qp, delay_ns);
}

void fail_late(Qp& qp) {
  Outbound& out = get_outbound(qp);
  if (out.link != nullptr) out.link->cancel(qp.index);
  const StepOutcome outcome = wait_for_timeout(qp);
  fail_oldest(qp, outcome.status, outcome.budget_ns);
}

namespace {

// Completes requests that are done, oldest first.
void conclude(Qp& qp) {
  Outbound& out = get_outbound(qp);
  SendQueue& queue = qp.send_queue;
  if (out.has_failed) return;
  while (!out.flying.empty()) {
    const Flying& oldest = out.flying.front();
    const bool is_done = oldest.response != nullptr ? oldest.is_answered : oldest.number < out.acknowledged;
    if (!is_done) break;
    if (oldest.response != nullptr) {
      --out.answers_owed;
      if (oldest.response->error.load() != 0) return fail_oldest(qp, IBV_WC_LOC_PROT_ERR);
    }
    if (qp.faults != nullptr) {
      const ibv_wc_status failure = faults::get_late_failure(qp, queue.at(queue.executed));
      if (failure != IBV_WC_SUCCESS) return fail_oldest(qp, failure);
    }
    complete_send(qp, queue.at(queue.executed), IBV_WC_SUCCESS);
    ++queue.executed;
    out.flying.pop_front();
    out.since_ns = read_clock_ns();
    qp.wait = Wait::kNone;
  }
  if (queue.executed == out.refused) fail_oldest(qp, out.failure);
}

// Finds the queue pair whose request the frame answers, and locks its mutex.
Qp* find_requester(const ProcessLink& link, const Header& header, std::unique_lock<std::mutex>& lock) {
  Qp* qp = get_wire()->find_qp(header.target_qp);
  if (qp == nullptr) return nullptr;
  lock = std::unique_lock(qp->mutex);
  const Outbound& out = qp->wire->outbound;
  const bool is_about_it = out.link.get() == &link && out.session == header.session && !out.has_failed;
  return is_about_it ? qp : nullptr;
}

// Returns the number of the request that the frame answers. A local request waits for all earlier ones, so a
// delayed answer to one of these also yields the number of an executed request.
uint64_t get_number(const Outbound& out, const Header& header) {
  return header.sequence + out.locals;
}

Flying* find_flying(Outbound& out, const Header& header) {
  const uint64_t number = get_number(out, header);
  if (out.flying.empty() || number < out.flying.front().number) return nullptr;
  const uint64_t index = number - out.flying.front().number;
  return index < out.flying.size() ? &out.flying[index] : nullptr;
}

// Takes back this request and all later ones, which are sent again.
void rewind(Qp& qp, uint64_t number) {
  Outbound& out = get_outbound(qp);
  out.link->cancel(qp.index);
  ++out.round;
  while (!out.flying.empty() && out.flying.back().number >= number) {
    if (out.flying.back().response != nullptr) --out.answers_owed;
    out.flying.pop_back();
  }
  qp.send_queue.started = number;
  out.refused = UINT64_MAX;
}

void wait_and_retry(Qp& qp, const Header& header) {
  const StepOutcome outcome =
      header.code == kReceiverNotReady ? wait_for_receive(qp, header.immediate) : wait_for_peer(qp);
  Outbound& out = get_outbound(qp);
  const uint64_t number = get_number(out, header);
  if (outcome.step == Step::kFail || !keep_waiting(qp, outcome)) {
    out.refused = number;
    out.failure = outcome.status;
    return conclude(qp);
  }
  rewind(qp, number);
  out.is_waiting = true;
  call_worker(qp, std::clamp((read_clock_ns() - qp.wait_start_ns) / 2, kFirstRetryNs, kLastRetryNs));
}

ibv_wc_status explain(uint8_t reason) {
  switch (reason) {
    case kAccessError:
      return IBV_WC_REM_ACCESS_ERR;
    case kInvalidRequest:
      return IBV_WC_REM_INV_REQ_ERR;
    case kOperationError:
      return IBV_WC_REM_OP_ERR;
    default:
      return IBV_WC_RETRY_EXC_ERR;
  }
}

void flush(Qp& qp) {
  Outbound& out = get_outbound(qp);
  SendQueue& queue = qp.send_queue;
  if (out.link != nullptr) out.link->cancel(qp.index);
  for (; queue.executed != queue.posted; ++queue.executed) {
    complete_send(qp, queue.at(queue.executed), IBV_WC_WR_FLUSH_ERR);
  }
  queue.started = queue.executed;
  out.flying.clear();
  out.answers_owed = 0;
}

// When it is due, reports the failed request, then moves the queue pair to the error state.
void conclude_failure(Qp& qp, std::unique_lock<std::mutex>& lock) {
  Outbound& out = get_outbound(qp);
  SendQueue& queue = qp.send_queue;
  if (qp.is_running) return;
  const uint64_t now_ns = read_clock_ns();
  if (now_ns < out.report_ns) return call_worker(qp, out.report_ns - now_ns);
  qp.is_running = out.is_reported = true;
  if (out.link != nullptr) out.link->cancel(qp.index);
  const uint32_t before = qp.shared->state.exchange(IBV_QPS_ERR);
  if (queue.executed != queue.posted) complete_send(qp, queue.at(queue.executed++), out.failure);
  lock.unlock();
  enter_error(qp);
  if (before != IBV_QPS_ERR && qp.base.srq != nullptr) {
    raise_async(Process::get()->self(), qp.shared->context.get(), qp.shared->token.get(),
                IBV_EVENT_QP_LAST_WQE_REACHED);
  }
  lock.lock();
  qp.is_running = false;
  qp.idle.notify_all();
}

// Executes requests that have no peer. May wait.
void run_local(Qp& qp, std::unique_lock<std::mutex>& lock) {
  Outbound& out = get_outbound(qp);
  SendQueue& queue = qp.send_queue;
  while (!qp.is_running && !out.has_failed && out.flying.empty() && queue.executed != queue.posted &&
         is_local(queue.at(queue.executed).opcode) && get_state(*qp.shared) == IBV_QPS_RTS) {
    Operation op;
    op.qp = &qp;
    op.request = &queue.at(queue.executed);
    qp.is_running = true;
    lock.unlock();
    const StepOutcome outcome = execute_local(op);
    lock.lock();
    qp.is_running = false;
    qp.idle.notify_all();
    if (outcome.step != Step::kDone) return fail_oldest(qp, outcome.status);
    complete_send(qp, *op.request, IBV_WC_SUCCESS);
    queue.started = ++queue.executed;
    ++out.locals;
  }
}

}  // namespace

void run_requests(Qp& qp, Runner runner, std::unique_lock<std::mutex>& lock) {
  Outbound& out = get_outbound(qp);
  if (runner == Runner::kWorker) {
    qp.is_with_worker = false;
    out.is_waiting = false;
  }
  const ibv_qp_state state = get_state(*qp.shared);
  if (state == IBV_QPS_RESET) return;
  if (out.has_failed && !out.is_reported) conclude_failure(qp, lock);
  if (runner == Runner::kWorker) run_local(qp, lock);
  if (get_state(*qp.shared) == IBV_QPS_ERR) {
    if (!qp.is_running) flush(qp);
    return;
  }
  start_all(qp);
}

void forget_requests(Qp& qp) {
  Outbound& out = get_outbound(qp);
  if (out.link != nullptr) out.link->cancel(qp.index);
  const uint64_t next_session = out.session + 1;  // although the clock may have been set back
  out = Outbound{};
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  out.session = std::max(
      next_session, static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec));
}

Verdict begin_response(ProcessLink& link, const Header& header, std::shared_ptr<Transfer>& transfer) {
  std::unique_lock<std::mutex> lock;
  Qp* qp = find_requester(link, header, lock);
  if (qp == nullptr) return Verdict::kDrop;
  Flying* flying = find_flying(get_outbound(*qp), header);
  if (flying == nullptr || flying->response == nullptr) return Verdict::kDrop;
  if (flying->is_answered || flying->response->bytes != header.bytes) return Verdict::kBreak;
  transfer = flying->response;
  return Verdict::kPlace;
}

void end_response(Stream& stream, const Header& header, const std::shared_ptr<Transfer>& transfer) {
  std::unique_lock<std::mutex> lock;
  Qp* qp = find_requester(stream.link(), header, lock);
  if (qp == nullptr) return;
  Flying* flying = find_flying(get_outbound(*qp), header);
  if (flying == nullptr || flying->response != transfer) return;
  if (header.length > transfer->bytes - transfer->received) {
    lock.unlock();
    return stream.link().fail("a response is too long");
  }
  transfer->received += header.length;
  if (transfer->received < transfer->bytes) return;
  store_tail(*transfer, stream.loop());
  flying->is_answered = true;
  conclude(*qp);
  start_all(*qp);
}

void take_acknowledgement(ProcessLink& link, const Header& header) {
  std::unique_lock<std::mutex> lock;
  Qp* qp = find_requester(link, header, lock);
  if (qp == nullptr) return;
  Outbound& out = get_outbound(*qp);
  const uint64_t number = get_number(out, header);
  if (number >= qp->send_queue.started) return;
  out.acknowledged = std::max(out.acknowledged, number + 1);
  conclude(*qp);
  start_all(*qp);
}

void take_refusal(ProcessLink& link, const Header& header) {
  std::unique_lock<std::mutex> lock;
  Qp* qp = find_requester(link, header, lock);
  if (qp == nullptr) return;
  Outbound& out = get_outbound(*qp);
  const uint64_t number = get_number(out, header);
  if (out.round != header.round || number >= std::min(out.refused, qp->send_queue.started)) return;
  // A completed request is never sent again: if the peer asks for it, the peer has lost data that it had
  // acknowledged.
  const bool is_over = number < qp->send_queue.executed;
  if (header.code == kGone || is_over) return fail_late(*qp);
  out.acknowledged = std::max(out.acknowledged, number);
  conclude(*qp);
  if (out.has_failed) return;
  if (header.code == kReceiverNotReady || header.code == kPeerNotReady) return wait_and_retry(*qp, header);
  out.refused = number;
  out.failure = explain(header.code);
  conclude(*qp);
}

void fail_request(ProcessLink& link, const Header& request, ibv_wc_status status) {
  Header header = request;
  header.target_qp = request.source_qp;
  std::unique_lock<std::mutex> lock;
  Qp* qp = find_requester(link, header, lock);
  if (qp == nullptr) return;
  Outbound& out = get_outbound(*qp);
  const uint64_t number = get_number(out, header);
  if (out.round != header.round || number >= std::min(out.refused, qp->send_queue.started)) return;
  out.refused = number;
  out.failure = status;
  conclude(*qp);
}

void fail_requests(ProcessLink& link) {
  get_wire()->for_each_qp([&](Qp& qp) {
    const std::lock_guard lock(qp.mutex);
    const Outbound& out = get_outbound(qp);
    if (out.link.get() == &link && !out.flying.empty()) fail_late(qp);
  });
}

void flush_soon(Qp& qp) {
  const std::lock_guard lock(qp.mutex);
  if (get_state(*qp.shared) == IBV_QPS_ERR) call_worker(qp, 0);
}

void check_deadlines(Port& port) {
  constexpr uint64_t kFloorNs = 5'000'000'000;  // TCP itself may need so long to recover from lost packets
  get_wire()->for_each_qp([&](Qp& qp) {
    const std::unique_lock lock(qp.mutex, std::try_to_lock);
    if (!lock || &get_wire()->get_port(qp.device) != &port) return;
    Outbound& out = get_outbound(qp);
    if (out.flying.empty() || out.link == nullptr || out.has_failed) return;
    const uint64_t bound_ns = std::max(kFloorNs, wait_for_peer(qp).budget_ns);
    if (read_clock_ns() - out.since_ns > bound_ns && out.link->get_silence_ns() > bound_ns)
      fail_oldest(qp, IBV_WC_RETRY_EXC_ERR);
  });
}

}  // namespace verbena::softverbs::wire
