#include <time.h>

#include <algorithm>

#include "softverbs/events.h"
#include "softverbs/executor.h"
#include "softverbs/rail_worker.h"

namespace verbena::softverbs {
namespace {

constexpr uint64_t kFirstRetryNs = 20'000, kLastRetryNs = 1'000'000;

enum class Stop { kAtEnd, kWaiting, kTooLarge, kFailed };

ibv_wc_opcode get_completion_opcode(ibv_wr_opcode opcode) {
  switch (opcode) {
    case IBV_WR_RDMA_WRITE:
    case IBV_WR_RDMA_WRITE_WITH_IMM:
      return IBV_WC_RDMA_WRITE;
    case IBV_WR_RDMA_READ:
      return IBV_WC_RDMA_READ;
    case IBV_WR_ATOMIC_CMP_AND_SWP:
      return IBV_WC_COMP_SWAP;
    case IBV_WR_ATOMIC_FETCH_AND_ADD:
      return IBV_WC_FETCH_ADD;
    default:
      return IBV_WC_SEND;
  }
}

void complete_send(Qp& qp, const SendRequest& request, ibv_wc_status status) {
  const bool is_signaled = qp.signal_all || (request.flags & IBV_SEND_SIGNALED) != 0;
  if (status == IBV_WC_SUCCESS && !is_signaled) return;
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

// True while the wait is within its budget; starts the clock at the first call of a wait.
bool keep_waiting(Qp& qp, const Outcome& outcome) {
  const uint64_t now_ns = read_clock_ns();
  if (qp.wait != outcome.wait) {
    qp.wait = outcome.wait;
    qp.wait_start_ns = now_ns;
  }
  return now_ns - qp.wait_start_ns <= outcome.budget_ns;
}

Stop run_until(Qp& qp, uint64_t end, Runner runner) {
  while (qp.send_queue.executed != end) {
    SendRequest& request = qp.send_queue.at(qp.send_queue.executed);
    if (runner == Runner::kPoster && request.length > get_config().inline_copy_bytes) return Stop::kTooLarge;
    const Outcome outcome = execute(qp, request);
    if (outcome.step == Step::kWait && keep_waiting(qp, outcome)) return Stop::kWaiting;
    qp.wait = Wait::kNone;
    ++qp.send_queue.executed;
    complete_send(qp, request, outcome.status);
    if (outcome.step != Step::kDone) return Stop::kFailed;
    if (get_state(*qp.shared) != IBV_QPS_RTS) return Stop::kAtEnd;
  }
  return Stop::kAtEnd;
}

void flush_sends(Qp& qp) {
  SendQueue& queue = qp.send_queue;
  for (; queue.executed != queue.posted; ++queue.executed) {
    complete_send(qp, queue.at(queue.executed), IBV_WC_WR_FLUSH_ERR);
  }
}

// The longer it waited the less often it looks.
uint64_t get_retry_delay_ns(const Qp& qp) {
  return std::clamp((read_clock_ns() - qp.wait_start_ns) / 2, kFirstRetryNs, kLastRetryNs);
}

}  // namespace

uint64_t read_clock_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000ull + static_cast<uint64_t>(now.tv_nsec);
}

void run_send_queue(Qp& qp, Runner runner) {
  std::unique_lock lock(qp.mutex);
  if (runner == Runner::kWorker) qp.is_with_worker = false;
  while (!qp.is_running && !qp.is_with_worker && qp.send_queue.executed != qp.send_queue.posted) {
    const ibv_qp_state state = get_state(*qp.shared);
    if (state == IBV_QPS_ERR) return flush_sends(qp);
    if (state != IBV_QPS_RTS) return;
    qp.is_running = true;
    const uint64_t end = qp.send_queue.posted;
    lock.unlock();
    const Stop stop = run_until(qp, end, runner);
    if (stop == Stop::kFailed) enter_error(qp);
    lock.lock();
    qp.is_running = false;
    qp.idle.notify_all();
    if (stop == Stop::kWaiting || stop == Stop::kTooLarge) {
      qp.is_with_worker = true;
      get_worker(qp.device).add(qp, stop == Stop::kWaiting ? get_retry_delay_ns(qp) : 0);
    }
  }
}

// A queue pair that waits with the worker is flushed at the worker's next look, at most a millisecond away.
void enter_error(Qp& qp) {
  const uint32_t before = qp.shared->state.exchange(IBV_QPS_ERR);
  wait_until_quiet(qp);
  flush_receives(Process::get()->self(), qp.index);
  if (before != IBV_QPS_ERR && qp.base.srq != nullptr) {
    raise_async(Process::get()->self(), qp.shared->context.get(), qp.shared->token.get(),
                IBV_EVENT_QP_LAST_WQE_REACHED);
  }
}

void fail_target(Peer& peer, uint32_t qp_index, ibv_event_type event) {
  SharedQp& target = peer.segment->qp(qp_index);
  uint32_t state = target.state.load();
  while (state != IBV_QPS_ERR) {
    if (state == IBV_QPS_RESET || state == IBV_QPS_INIT) return;
    if (target.state.compare_exchange_weak(state, IBV_QPS_ERR)) break;
  }
  flush_receives(peer, qp_index);
  if (state == IBV_QPS_ERR) return;
  raise_async(peer, target.context.get(), target.token.get(), event);
  if (peer.segment->receive_queue(target.receive_queue.get()).is_shared.get() != 0) {
    raise_async(peer, target.context.get(), target.token.get(), IBV_EVENT_QP_LAST_WQE_REACHED);
  }
}

void flush_receives(Peer& peer, uint32_t qp_index) {
  Segment& segment = *peer.segment;
  SharedQp& target = segment.qp(qp_index);
  SharedReceiveQueue& queue = segment.receive_queue(target.receive_queue.get());
  Completion completion{};
  completion.status = IBV_WC_WR_FLUSH_ERR;
  completion.opcode = IBV_WC_RECV;
  completion.qp_number = target.number.load();
  completion.life = target.life.get();
  if (target.receive_open.exchange(0) != 0) {
    completion.wr_id = target.receive_wr_id.get();
    completion.receive_count = (target.receive_count.load() - 1) | kIsReceive;
    complete(peer, target.receive_cq.get(), completion, true);
  }
  if (queue.is_shared.get() != 0) return;  // the others' receives
  ReceiveRequest request;
  while (pop_receive(segment, queue, qp_index, request, Keep::kNothing)) {
    completion.wr_id = request.wr_id;
    completion.receive_count = request.count;
    complete(peer, target.receive_cq.get(), completion, true);
  }
}

void wait_until_quiet(Qp& qp) {
  Segment& segment = Process::get()->segment();
  for (uint32_t looks = 0; qp.shared->busy.fetch_add(0) != 0; ++looks) {
    if (qp.peer != nullptr && qp.peer->dead.load(std::memory_order_acquire)) {
      recover_receives(segment, segment.receive_queue(qp.shared->receive_queue.get()), qp.index);
      qp.shared->busy.store(0);
      return;
    }
    sched_yield();
  }
}

void wait_until_idle(Qp& qp) {
  std::unique_lock lock(qp.mutex);
  qp.idle.wait(lock, [&] { return !qp.is_running; });
}

}  // namespace verbena::softverbs
