#include "softverbs/engine/send_runner.h"

#include <algorithm>
#include <utility>

#include "softverbs/engine/atomic_operation.h"
#include "softverbs/engine/events.h"
#include "softverbs/engine/memory_window.h"
#include "softverbs/engine/rail_worker.h"
#include "softverbs/engine/shuffled_writes.h"
#include "softverbs/faults/gate.h"
#include "softverbs/gpu/gpu_copy.h"
#include "softverbs/shared/clock.h"
#include "softverbs/wire/end.h"
#include "softverbs/wire/requester.h"

namespace verbena::softverbs {
namespace {

constexpr uint64_t kFirstRetryNs = 20'000, kLastRetryNs = 1'000'000;

constexpr size_t kMaxFlying = kOpenReceives / 2;
constexpr ptrdiff_t kMaxChanges = 8;  // for one queue pair, of the owner's kGpuChanges

ibv_wc_opcode get_completion_opcode(ibv_wr_opcode opcode) {
  switch (opcode) {
    case IBV_WR_RDMA_WRITE:
    case IBV_WR_RDMA_WRITE_WITH_IMM:
      return IBV_WC_RDMA_WRITE;
    case IBV_WR_RDMA_READ:
      return IBV_WC_RDMA_READ;
    case IBV_WR_BIND_MW:
      return IBV_WC_BIND_MW;
    case IBV_WR_LOCAL_INV:
      return IBV_WC_LOCAL_INV;
    case IBV_WR_ATOMIC_WRITE:
      return IBV_WC_ATOMIC_WRITE;
    case IBV_WR_ATOMIC_CMP_AND_SWP:
      return IBV_WC_COMP_SWAP;
    case IBV_WR_ATOMIC_FETCH_AND_ADD:
      return IBV_WC_FETCH_ADD;
    default:
      return IBV_WC_SEND;
  }
}

}  // namespace

void complete_send(Qp& qp, const SendRequest& request, ibv_wc_status status) {
  const bool is_signaled = qp.signal_all || (request.flags & IBV_SEND_SIGNALED) != 0;
  if (status == IBV_WC_SUCCESS && !is_signaled) return;
  if (qp.faults != nullptr && status == IBV_WC_SUCCESS && faults::drops_completion(qp, request)) return;
  Completion completion{};
  completion.wr_id = request.wr_id;
  completion.send_retired = request.number + 1;
  completion.status = status;
  completion.opcode = get_completion_opcode(request.opcode);
  completion.byte_length = static_cast<uint32_t>(request.length);
  completion.qp_number = qp.base.qp_num;
  completion.life = qp.shared->life.get();
  complete(Process::get()->self(), get_cq(qp.base.send_cq).index, completion, status != IBV_WC_SUCCESS);
}

namespace {

// A NIC cannot tell why nobody answers, so these waits have one clock.
bool is_unanswered(Wait wait) {
  return wait == Wait::kPeerNotReady || wait == Wait::kPeerGone || wait == Wait::kRailDown;
}

}  // namespace

bool keep_waiting(Qp& qp, const StepOutcome& outcome) {
  const uint64_t now_ns = read_clock_ns();
  if (qp.wait != outcome.wait && !(is_unanswered(qp.wait) && is_unanswered(outcome.wait)))
    qp.wait_start_ns = now_ns;
  qp.wait = outcome.wait;
  return now_ns - qp.wait_start_ns <= outcome.budget_ns;
}

namespace {

// As a NIC does, moves the queue pair to the error state before the completion of a failed request can be
// seen.
void complete_request(Qp& qp, const SendRequest& request, const StepOutcome& outcome) {
  // A queue pair that is reset forgets its requests: their failure is no error of the queue pair.
  if (outcome.step == Step::kFail && !qp.transition && get_state(*qp.shared) != IBV_QPS_RESET)
    qp.transition = begin_error(qp);
  if (outcome.step == Step::kDone && qp.wait == Wait::kPeerGone) qp.wait = Wait::kNone;
  complete_send(qp, request, outcome.status);
  ++qp.send_queue.executed;
}

}  // namespace

Step conclude(Qp& qp, Operation& op, bool is_flushed) {
  finish(op);
  if (is_flushed) op.outcome = {Step::kFail, IBV_WC_WR_FLUSH_ERR};
  if (qp.faults != nullptr && op.outcome.step == Step::kDone) {
    const ibv_wc_status failure = faults::get_late_failure(qp, *op.request);
    if (failure != IBV_WC_SUCCESS) op.outcome = {Step::kFail, failure};
    if (op.is_datagram) faults::note_datagram(op);
  }
  complete_request(qp, *op.request, op.outcome);
  return op.outcome.step;
}

namespace {

// Checks an atomic change of a word. All earlier operations must have landed, except a write that is executed
// together with it. A queue pair that drains completes the operations that it has begun.
LaneState look_at_change(const Qp& qp, Operation& op, bool is_after_failure, Operation* carried) {
  const ibv_qp_state state_now = get_state(*qp.shared);
  const bool may_happen = !is_after_failure && (state_now == IBV_QPS_RTS || state_now == IBV_QPS_SQD);
  if (!end_change(op, may_happen ? Permission::kGranted : Permission::kDenied, carried))
    return LaneState::kBusy;
  const LaneState state = op.outcome.step == Step::kDone ? LaneState::kDone : LaneState::kBroken;
  if (carried == nullptr) return state;
  drop_carried(*carried);
  carried->outcome = carried->is_broken ? explain_failure(*carried, IBV_WC_GENERAL_ERR) : op.outcome;
  carried->is_broken = state == LaneState::kBroken;
  carried->has_landed = true;
  return state;
}

LaneState look_at_flying(const Qp& qp, Operation& op, bool is_after_failure, Operation* carried) {
  if (op.change != Change::kNone) return look_at_change(qp, op, is_after_failure, carried);
  if (op.carried != nullptr) return look_at_carried(op);
  return op.lane != nullptr ? look_at_lane(op) : LaneState::kDone;
}

// Checks which GPU copies and changes are complete, and copies their staged data.
void look_at_lanes(Qp& qp) {
  bool is_after_failure = false;
  Operation* carried = nullptr;
  for (const std::unique_ptr<Operation>& flying : qp.flying) {
    Operation& op = *flying;
    if (!op.has_landed) {
      const LaneState state = look_at_flying(qp, op, is_after_failure, std::exchange(carried, nullptr));
      if (state == LaneState::kBusy) break;
      op.is_broken = state == LaneState::kBroken;
      if (op.carried == nullptr) {
        op.has_landed = true;
        if (op.is_datagram) qp.chain.land(op);
      } else {
        carried = &op;
      }
    }
    is_after_failure = is_after_failure || (op.is_broken && !op.is_datagram);
  }
  qp.chain.flush();
}

// Completes the GPU copies that are done. Requests after a failure are flushed, but only once their copies
// have ended. A copied request counts as executed, unless it came after a copy that failed.
Step land(Qp& qp) {
  look_at_lanes(qp);
  while (!qp.flying.empty() && qp.flying.front()->has_landed) {
    Operation& op = *qp.flying.front();
    if (op.is_broken && op.is_datagram) op.fits = false;
    if (op.is_broken && !op.is_datagram) {
      const bool is_explained = op.outcome.step == Step::kFail;
      const StepOutcome cause = is_explained ? op.outcome : explain_failure(op, IBV_WC_GENERAL_ERR);
      for (const auto& behind : qp.flying) behind->outcome = {Step::kFail, IBV_WC_WR_FLUSH_ERR};
      op.outcome = cause;
    }
    const Step step = conclude(qp, op, get_state(*qp.shared) == IBV_QPS_ERR);
    OperationPool::of_thread().give_back(std::move(qp.flying.front()));
    qp.flying.pop_front();
    if (step == Step::kFail) return step;
  }
  return Step::kDone;
}

}  // namespace

bool prepare_next(Qp& qp) {
  if (qp.is_next_prepared) return true;
  SendRequest& request = qp.send_queue.at(qp.send_queue.started);
  StepOutcome outcome =
      qp.faults == nullptr ? prepare(*qp.next, qp, request) : faults::prepare_request(*qp.next, qp, request);
  if (outcome.step == Step::kWait && keep_waiting(qp, outcome)) return false;
  if (outcome.step == Step::kWait) outcome = {Step::kFail, outcome.status};
  // Whether the peer is still gone shows only when a request is carried out (complete_request).
  if (qp.wait != Wait::kPeerGone) qp.wait = Wait::kNone;
  qp.next->outcome = outcome;
  qp.is_next_prepared = true;
  return true;
}

StepOutcome execute(Operation& op) {
  if (is_local(op.request->opcode)) return execute_local(op);
  if (op.is_struck) return faults::take_datagram(op);
  if (op.is_wired) return wire::send_datagram(op), StepOutcome{};
  if (is_atomic(op.request->opcode)) return execute_atomic(op);
  return settle(op, op.uses_gpu() ? copy_staged(op) : copy_host(op));
}

Stop fail_next(Qp& qp) {
  complete_request(qp, qp.send_queue.at(qp.send_queue.started++), {Step::kFail, IBV_WC_LOC_QP_OP_ERR});
  return Stop::kFailed;
}

Step run_alone(Qp& qp) {
  if (qp.next->outcome.step == Step::kDone)
    qp.next->outcome = execute(*qp.next);
  else if (qp.faults != nullptr && qp.next->outcome.wait != Wait::kPeerGone)
    faults::strike_far_end(qp, *qp.next->request);
  // If the peer has gone since the request was prepared, the request is prepared again until its timeout.
  const bool is_lost = qp.next->outcome.wait == Wait::kPeerGone;
  if (is_lost && keep_waiting(qp, wait_for_timeout(qp))) {
    drop_next(qp);
    return Step::kWait;
  }
  ++qp.send_queue.started;
  qp.is_next_prepared = false;
  return conclude(qp, *qp.next);
}

namespace {

bool overlap(const Operation& a, const Operation& b) {
  for (const iovec& one : a.remote.pieces) {
    for (const iovec& other : b.remote.pieces) {
      const uint64_t start = reinterpret_cast<uint64_t>(one.iov_base);
      const uint64_t other_start = reinterpret_cast<uint64_t>(other.iov_base);
      if (start < other_start + other.iov_len && other_start < start + one.iov_len) return true;
    }
  }
  return false;
}

// A change may be prepared while earlier operations are outstanding, unless one of them writes the word.
DatagramChain::Begun launch_change(const Qp& qp, Operation& next) {
  using Begun = DatagramChain::Begun;
  if (!next.remote.has_gpu || next.local.has_gpu) return Begun::kNo;
  if (next.peer->dead.load(std::memory_order_acquire)) {
    next.outcome = lose_peer();
    return Begun::kNo;
  }
  const auto is_change = [](const auto& op) { return op->change != Change::kNone; };
  const auto writes_it = [&](const auto& op) {
    return op->change == Change::kNone && !is_read(*op) && overlap(*op, next);
  };
  if (std::any_of(qp.flying.begin(), qp.flying.end(), writes_it)) return Begun::kLater;
  if (std::count_if(qp.flying.begin(), qp.flying.end(), is_change) >= kMaxChanges) return Begun::kLater;
  return begin_change(next) ? Begun::kYes : Begun::kLater;
}

// A lane keeps the order of its copies. While operations of the owner or of other lanes are outstanding, a
// copy begins only if its effect may be seen in any order, if it touches no memory of those operations, and
// if it need not wait for their results.
bool may_begin_copies(const Qp& qp, const Operation& next) {
  if (qp.flying.empty()) return true;
  const GpuLane* const lane = choose_lane(next);
  const bool is_fenced = (next.request->flags & IBV_SEND_FENCE) != 0;
  const bool is_free = next.request->opcode == IBV_WR_RDMA_WRITE && next.remote.is_relaxed;
  return std::all_of(qp.flying.begin(), qp.flying.end(), [&](const auto& op) {
    const bool is_owners = op->change != Change::kNone || op->carried != nullptr;
    const bool has_result = is_read(*op) || is_atomic(op->request->opcode);
    const bool is_in_order = !is_owners && op->lane == lane;
    return is_in_order || (is_free && !overlap(*op, next) && !(is_fenced && has_result));
  });
}

// Undoes the preparation of a request that has not begun. `before` is the last outstanding operation, or
// null; the owner's count must not reach the request's mark before the mark of `before`.
void undo(Operation& op, Operation* before) {
  if (before != nullptr) before->marks += std::exchange(op.marks, 0);
  op.outcome = {Step::kFail, IBV_WC_WR_FLUSH_ERR};
  finish(op);
}

}  // namespace

void drop_next(Qp& qp) {
  if (!qp.is_next_prepared) return;
  undo(*qp.next, qp.flying.empty() ? nullptr : qp.flying.back().get());
  qp.is_next_prepared = false;
}

namespace {

bool begin_with_write(Operation& add, Operation& write) {
  const bool is_pair =
      add.remote.has_gpu && !add.local.has_gpu && can_be_carried(write, add) && !overlap(write, add);
  if (!is_pair || !reserve_carried(write)) return false;
  if (begin_change(add)) return true;
  drop_carried(write);
  return false;
}

// Begins the next request, a short write, together with the add after it, if no operation is outstanding.
bool launch_with_add(Qp& qp, uint64_t end) {
  constexpr uint64_t kLongest = kCarriedWords * sizeof(uint64_t);
  const uint64_t behind = qp.send_queue.started + 1;
  const Operation& write = *qp.next;
  const bool is_short = write.request->opcode == IBV_WR_RDMA_WRITE && write.outcome.step == Step::kDone &&
                        write.bytes != 0 && write.bytes <= kLongest;
  if (!is_short || behind == end || !qp.flying.empty() || qp.faults != nullptr) return false;
  if (qp.send_queue.at(behind).opcode != IBV_WR_ATOMIC_FETCH_AND_ADD) return false;
  auto add = OperationPool::of_thread().take();
  if (add == nullptr) return false;
  const StepOutcome prepared = prepare(*add, qp, qp.send_queue.at(behind));
  if (prepared.step != Step::kDone || !begin_with_write(*add, *qp.next)) {
    if (prepared.step != Step::kWait) undo(*add, qp.next.get());
    OperationPool::of_thread().give_back(std::move(add));
    return false;
  }
  load_carried(*qp.next);
  qp.flying.push_back(std::move(qp.next));
  qp.flying.push_back(std::move(add));
  qp.send_queue.started += 2;
  qp.is_next_prepared = false;
  return true;
}

// Begins the next request if possible. Returns kLater if it can begin once the earlier ones are complete.
DatagramChain::Begun launch(Qp& qp) {
  using Begun = DatagramChain::Begun;
  Operation& next = *qp.next;
  if (next.outcome.step != Step::kDone || next.is_struck || next.is_wired) return Begun::kNo;
  if (next.is_datagram) {
    if (const Begun begun = qp.chain.begin(next); begun != Begun::kYes) return begun;
  } else if (is_atomic(next.request->opcode)) {
    if (const Begun begun = launch_change(qp, next); begun != Begun::kYes) return begun;
  } else {
    if (!next.uses_gpu()) return Begun::kNo;
    if (!may_begin_copies(qp, next)) return Begun::kLater;
    if (!start_gpu_copies(next)) return Begun::kNo;
  }
  qp.flying.push_back(std::move(qp.next));
  ++qp.send_queue.started;
  qp.is_next_prepared = false;
  return Begun::kYes;
}

// Starts the copies that were collected during this run, because no later request can be added to them.
void start_lanes(Qp& qp) {
  for (const auto& op : qp.flying)
    if (op->lane != nullptr && op->carried == nullptr) op->lane->start();
}

Stop launch_all(Qp& qp, uint64_t end, Runner runner, bool is_workers) {
  for (;;) {
    const ibv_qp_state state = get_state(*qp.shared);
    if (state == IBV_QPS_ERR) drop_next(qp);
    if (state != IBV_QPS_RTS || qp.send_queue.started == end)
      return qp.flying.empty() ? Stop::kAtEnd : Stop::kFlying;
    const uint64_t length = qp.send_queue.at(qp.send_queue.started).length;
    if (runner == Runner::kPoster && length > static_cast<uint64_t>(get_config().inline_copy_bytes))
      return Stop::kNeedsWorker;
    if (is_workers || (runner == Runner::kPoster && qp.has_used_gpu)) return Stop::kNeedsWorker;
    if (qp.next == nullptr) qp.next = OperationPool::of_thread().take();
    if (qp.next == nullptr) return qp.flying.empty() ? fail_next(qp) : Stop::kFlying;
    if (!prepare_next(qp)) return qp.flying.empty() ? Stop::kWaiting : Stop::kFlying;
    qp.has_used_gpu = qp.next->uses_gpu();
    if (runner == Runner::kPoster && qp.has_used_gpu) return Stop::kNeedsWorker;
    if (qp.flying.size() == kMaxFlying) return Stop::kFlying;
    if (launch_with_add(qp, end)) continue;
    const DatagramChain::Begun begun = launch(qp);
    if (begun == DatagramChain::Begun::kYes) continue;
    if (begun == DatagramChain::Begun::kLater) return Stop::kFlying;
    if (!qp.flying.empty()) return Stop::kFlying;
    const Step step = run_alone(qp);
    if (step != Step::kDone) return step == Step::kFail ? Stop::kFailed : Stop::kWaiting;
  }
}

// Checks once for completed copies, then launches as many as possible; the next run checks all of them
// together. Datagrams between host memories are complete as soon as their chain is copied.
Stop look_and_launch(Qp& qp, uint64_t end, Runner runner) {
  const bool is_workers = qp.faults != nullptr && runner == Runner::kPoster && faults::needs_worker(qp);
  for (;;) {
    if (land(qp) == Step::kFail) return Stop::kFailed;
    const Stop stop = launch_all(qp, end, runner, is_workers);
    qp.chain.flush();
    if (qp.faults != nullptr && !is_workers) faults::end_run(qp);
    if (stop == Stop::kFailed || qp.flying.empty()) return stop;
    const Operation& oldest = *qp.flying.front();
    if (oldest.lane != nullptr || oldest.change != Change::kNone || oldest.carried != nullptr) return stop;
  }
}

Stop run_until(Qp& qp, uint64_t end, Runner runner) {
  const Stop stop = look_and_launch(qp, end, runner);
  if (stop == Stop::kFlying) start_lanes(qp);
  // Frees the operation, because most of thousands of queue pairs have nothing to send.
  if (!qp.is_next_prepared && qp.next != nullptr) OperationPool::of_thread().give_back(std::move(qp.next));
  return stop;
}

void flush_sends(Qp& qp) {
  SendQueue& queue = qp.send_queue;
  drop_next(qp);
  for (; queue.executed != queue.posted; ++queue.executed) {
    complete_send(qp, queue.at(queue.executed), IBV_WC_WR_FLUSH_ERR);
  }
  queue.started = queue.executed;
}

// Ends the transition of begin_error(). Never waits, because the peer may be waiting for this thread, which
// completes copies of both ends.
bool end_transition(Qp& qp, std::unique_lock<std::mutex>& lock) {
  qp.is_running = true;
  lock.unlock();
  const bool has_ended = end_error(qp, *qp.transition);
  lock.lock();
  if (has_ended) qp.transition.reset();
  qp.is_running = false;
  qp.idle.notify_all();
  return has_ended;
}

// The delay grows with the time that the request has waited.
uint64_t get_retry_delay_ns(Qp& qp) {
  if (qp.wait == Wait::kDelayed)
    return std::clamp<uint64_t>(faults::get_delay_ns(qp, qp.send_queue.at(qp.send_queue.started)), 1,
                                kLastRetryNs);
  return std::clamp((read_clock_ns() - qp.wait_start_ns) / 2, kFirstRetryNs, kLastRetryNs);
}

uint64_t get_delay_ns(Qp& qp, Stop stop) {
  if (stop == Stop::kWaiting) return get_retry_delay_ns(qp);
  if (stop != Stop::kHeld) return 0;
  const uint64_t now_ns = read_clock_ns();
  return std::max(qp.shuffle->held_until_ns, now_ns) - now_ns;
}

// `run` executes the queue pair's requests up to `end`.
template <Stop (*run)(Qp& qp, uint64_t end, Runner runner)>
void run_requests(Qp& qp, Runner runner, std::unique_lock<std::mutex>& lock) {
  if (runner == Runner::kWorker) qp.is_with_worker = false;
  const auto has_work = [&] { return qp.transition || qp.send_queue.executed != qp.send_queue.posted; };
  while (!qp.is_running && !qp.is_with_worker && has_work()) {
    const ibv_qp_state state = get_state(*qp.shared);
    if (qp.flying.empty() && qp.transition) {
      if (end_transition(qp, lock)) continue;
      qp.is_with_worker = true;
      return get_worker(qp.device).add(qp, kFirstRetryNs);
    }
    if (qp.flying.empty() && state == IBV_QPS_ERR) return flush_sends(qp);
    if (qp.flying.empty() && state != IBV_QPS_RTS) return;
    qp.is_running = true;
    const uint64_t end = state == IBV_QPS_RTS ? qp.send_queue.posted : qp.send_queue.started;
    lock.unlock();
    const Stop stop = run(qp, end, runner);
    if (stop == Stop::kFailed) drop_next(qp);
    lock.lock();
    qp.is_running = false;
    qp.idle.notify_all();
    if (stop == Stop::kAtEnd || stop == Stop::kFailed) continue;
    qp.is_with_worker = true;
    get_worker(qp.device).add(qp, get_delay_ns(qp, stop));
  }
}

void run_specially(Qp& qp, Runner runner, std::unique_lock<std::mutex>& lock) {
  if (qp.is_wired) return wire::run_requests(qp, runner, lock);
  run_requests<run_shuffled>(qp, runner, lock);
}

}  // namespace

// A thread that gives work to the worker holds the mutex for a moment longer, because sleeping would take 2
// us.
void run_send_queue(Qp& qp, Runner runner) {
  constexpr int kTries = 100;
  std::unique_lock lock(qp.mutex, std::defer_lock);
  for (int i = 0; i < kTries && !lock.owns_lock(); ++i) (void)lock.try_lock();
  if (!lock.owns_lock()) lock.lock();
  run_send_queue(qp, runner, lock);
}

void run_send_queue(Qp& qp, Runner runner, std::unique_lock<std::mutex>& lock) {
  if (qp.has_own_runner) return run_specially(qp, runner, lock);
  run_requests<run_until>(qp, runner, lock);
}

void wait_until_idle(Qp& qp) {
  std::unique_lock lock(qp.mutex);
  qp.idle.wait(lock, [&] { return !qp.is_running && qp.flying.empty(); });
}

void forget_sends(Qp& qp) {
  wait_until_idle(qp);
  if (qp.wire != nullptr) {
    const std::lock_guard lock(qp.mutex);
    wire::forget_requests(qp);  // first, so that afterwards no loop gives the queue pair to the worker
  }
  get_worker(qp.device).forget(qp);
  std::lock_guard lock(qp.mutex);
  qp.is_with_worker = false;
  qp.transition.reset();
  drop_next(qp);
}

}  // namespace verbena::softverbs
