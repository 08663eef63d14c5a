#include "softverbs/wire/requester.h"

#include <algorithm>
#include <ctime>

#include "softverbs/clock.h"
#include "softverbs/events.h"
#include "softverbs/memory_window.h"
#include "softverbs/wire/end.h"
#include "softverbs/wire/wire.h"

namespace verbena::softverbs::wire {
namespace {

constexpr size_t kMaxFlying = 256;            // requests of a queue pair under way
constexpr uint32_t kStripeBytes = 128 << 10;  // longer payloads take all streams
constexpr uint32_t kMaxChunkBytes = 512 << 10;
constexpr uint64_t kFirstRetryNs = 100'000, kLastRetryNs = 2'000'000;

Outbound& get_outbound(Qp& qp) {
  return qp.wire->outbound;
}

bool has_answer(ibv_wr_opcode opcode) {
  return opcode == IBV_WR_RDMA_READ || is_atomic(opcode);
}

void call_worker(Qp& qp, uint64_t delay_ns) {
  if (qp.is_with_worker) {
    if (delay_ns == 0) get_worker(qp.device).hurry(qp);
    return;
  }
  qp.is_with_worker = true;
  get_worker(qp.device).add(qp, delay_ns);
}

// The oldest request fails, and the queue pair with it: the worker sees to that, as it may wait for loops.
void fail(Qp& qp, ibv_wc_status status) {
  Outbound& out = get_outbound(qp);
  if (out.has_failed) return;
  out.has_failed = true;
  out.failure = status;
  call_worker(qp, 0);
}

bool find_link(Qp& qp) {
  Outbound& out = get_outbound(qp);
  if (out.link != nullptr && !out.link->is_dead()) return true;
  if (!out.flying.empty()) return false;  // they fail with their link
  ibv_gid address;
  out.link = find_address(qp.attributes.ah_attr.grh.dgid, address)
                 ? get_wire()->get_link(qp.device, address, qp.attributes.dest_qp_num)
                 : nullptr;
  if (out.link == nullptr) fail(qp, IBV_WC_RETRY_EXC_ERR);
  return out.link != nullptr;
}

bool can_start(Qp& qp) {
  Outbound& out = get_outbound(qp);
  SendQueue& queue = qp.send_queue;
  if (queue.started == queue.posted || get_state(*qp.shared) != IBV_QPS_RTS) return false;
  if (out.is_waiting || out.has_failed || out.refused != UINT64_MAX || out.flying.size() >= kMaxFlying)
    return false;
  const SendRequest& request = queue.at(queue.started);
  if (is_local(request.opcode)) {
    if (out.flying.empty() && !qp.is_running) call_worker(qp, 0);  // it may wait for loops
    return false;
  }
  const uint32_t limit = std::max<uint32_t>(qp.attributes.max_rd_atomic, 1);
  if (has_answer(request.opcode) && out.answers_owed >= limit) return false;
  if ((request.flags & IBV_SEND_FENCE) != 0 && out.answers_owed > 0) return false;
  return find_link(qp);
}

Header make_header(const Qp& qp, const SendRequest& request) {
  Header header{};
  header.kind = Kind::kRequest;
  header.code = static_cast<uint8_t>(request.opcode);
  if ((request.flags & IBV_SEND_SOLICITED) != 0) header.flags = kSolicited;
  header.source_qp = qp.base.qp_num;
  header.target_qp = qp.attributes.dest_qp_num;
  header.session = qp.wire->outbound.session;
  header.sequence = request.number;
  header.round = qp.wire->outbound.round;
  header.immediate = request.immediate;
  header.bytes = static_cast<uint32_t>(request.length);
  header.address = request.remote_address;
  header.key = request.rkey;
  return header;
}

// Where the response of a request goes.
std::shared_ptr<Transfer> make_response(Qp& qp, const SendRequest& request) {
  auto response = std::make_shared<Transfer>();
  response->bytes = static_cast<uint32_t>(request.length);
  Target& target = response->target;
  const ibv_sge* sges = qp.send_queue.get_sges(request);
  for (uint32_t i = 0; i < request.sge_count; ++i)
    target.pieces.push_back({sges[i].addr, sges[i].length, sges[i].lkey});
  target.pd = qp.shared->pd.get();
  target.access = IBV_ACCESS_LOCAL_WRITE;
  target.qp_index = qp.index;
  target.life = qp.shared->life.get();
  return response;
}

void choose_streams(OutMessage& message, Link& link) {
  const uint32_t streams = link.hello.streams;
  if (streams == 1 || message.payload_bytes <= kStripeBytes) {
    message.home = link.choose_home(message.qp_index);
    message.chunk_bytes = kMaxChunkBytes;
    return;
  }
  constexpr uint32_t kGrain = 4096;
  const uint32_t share = (message.payload_bytes / streams + kGrain) / kGrain * kGrain;
  message.home = kAnyStream;
  message.chunk_bytes = std::clamp(share, kStripeBytes / 2, kMaxChunkBytes);
}

// Gives the next request to the link. False when it cannot go.
bool start_next(Qp& qp) {
  Outbound& out = get_outbound(qp);
  SendRequest& request = qp.send_queue.at(qp.send_queue.started);
  Operation op;
  op.qp = &qp;
  op.request = &request;
  if (!gather_local(op)) {
    if (out.flying.empty()) fail(qp, IBV_WC_LOC_PROT_ERR);
    return false;
  }
  auto message = std::make_shared<OutMessage>();
  message->header = make_header(qp, request);
  message->qp_index = qp.index;
  std::shared_ptr<Transfer> response;
  if (has_answer(request.opcode)) response = make_response(qp, request);
  if (is_atomic(request.opcode)) {
    message->copy.resize(kAtomicBytes);
    memcpy(message->copy.data(), &request.compare_add, sizeof(uint64_t));
    memcpy(message->copy.data() + sizeof(uint64_t), &request.swap, sizeof(uint64_t));
    message->local.add(reinterpret_cast<uint64_t>(message->copy.data()), kAtomicBytes, 0, 0);
    message->payload_bytes = kAtomicBytes;
  } else if (request.opcode != IBV_WR_RDMA_READ) {
    message->local = std::move(op.local);
    message->payload_bytes = static_cast<uint32_t>(request.length);
  }
  choose_streams(*message, *out.link);
  if (out.flying.empty()) out.since_ns = read_clock_ns();
  if (response != nullptr) ++out.answers_owed;
  out.flying.push_back({request.number, std::move(response)});
  ++qp.send_queue.started;
  out.link->submit(std::move(message), true);
  return true;
}

void start_all(Qp& qp) {
  while (can_start(qp) && start_next(qp)) {
  }
}

// Completes what is done, from the oldest on.
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
      if (oldest.response->error.load() != 0) return fail(qp, IBV_WC_LOC_PROT_ERR);
    }
    complete_send(qp, queue.at(queue.executed), IBV_WC_SUCCESS);
    ++queue.executed;
    out.flying.pop_front();
    out.since_ns = read_clock_ns();
    qp.wait = Wait::kNone;
  }
  if (queue.executed == out.refused) fail(qp, out.failure);
}

// The queue pair's mutex and its requests, if the frame is about them.
Qp* find_requester(const Link& link, const Header& header, std::unique_lock<std::mutex>& lock) {
  Qp* qp = get_wire()->find_qp(header.target_qp);
  if (qp == nullptr) return nullptr;
  lock = std::unique_lock(qp->mutex);
  const Outbound& out = qp->wire->outbound;
  const bool is_about_it = out.link.get() == &link && out.session == header.session && !out.has_failed;
  return is_about_it ? qp : nullptr;
}

Flying* find_flying(Outbound& out, uint64_t number) {
  if (out.flying.empty() || number < out.flying.front().number) return nullptr;
  const uint64_t index = number - out.flying.front().number;
  return index < out.flying.size() ? &out.flying[index] : nullptr;
}

// Takes back this request and all later ones.
void rewind(Qp& qp, uint64_t number) {
  Outbound& out = get_outbound(qp);
  out.link->cancel(qp.index);
  ++out.round;
  while (!out.flying.empty() && out.flying.back().number >= number) {
    if (out.flying.back().response != nullptr) --out.answers_owed;
    out.flying.pop_back();
  }
  qp.send_queue.started = number;
}

void wait_and_retry(Qp& qp, const Header& header) {
  const Outcome outcome =
      header.code == kReceiverNotReady ? wait_for_receive(qp, header.immediate) : wait_for_peer(qp);
  Outbound& out = get_outbound(qp);
  if (outcome.step == Step::kFail || !keep_waiting(qp, outcome)) {
    out.refused = header.sequence;
    out.failure = outcome.status;
    return conclude(qp);
  }
  rewind(qp, header.sequence);
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

// Reports the request that failed, then the queue pair enters the error state.
void conclude_failure(Qp& qp, std::unique_lock<std::mutex>& lock) {
  Outbound& out = get_outbound(qp);
  SendQueue& queue = qp.send_queue;
  if (qp.is_running) return;
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

// Requests that have no peer are executed alone, where waiting is allowed.
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
    const Outcome outcome = execute_local(op);
    lock.lock();
    qp.is_running = false;
    qp.idle.notify_all();
    if (outcome.step != Step::kDone) return fail(qp, outcome.status);
    complete_send(qp, *op.request, IBV_WC_SUCCESS);
    queue.started = ++queue.executed;
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
  out = Outbound{};
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  out.session = static_cast<uint64_t>(now.tv_sec) * 1'000'000'000ull + static_cast<uint64_t>(now.tv_nsec);
}

Verdict begin_response(Link& link, const Header& header, std::shared_ptr<Transfer>& transfer) {
  std::unique_lock<std::mutex> lock;
  Qp* qp = find_requester(link, header, lock);
  if (qp == nullptr) return Verdict::kDrop;
  Flying* flying = find_flying(get_outbound(*qp), header.sequence);
  if (flying == nullptr || flying->response == nullptr) return Verdict::kDrop;
  if (flying->is_answered || flying->response->bytes != header.bytes) return Verdict::kBreak;
  transfer = flying->response;
  return Verdict::kPlace;
}

void end_response(Stream& stream, const Header& header, const std::shared_ptr<Transfer>& transfer) {
  std::unique_lock<std::mutex> lock;
  Qp* qp = find_requester(stream.link(), header, lock);
  if (qp == nullptr) return;
  Flying* flying = find_flying(get_outbound(*qp), header.sequence);
  if (flying == nullptr || flying->response != transfer) return;
  if (header.length > transfer->bytes - transfer->received) {
    lock.unlock();
    return stream.link().fail("a response that is too long");
  }
  transfer->received += header.length;
  if (transfer->received < transfer->bytes) return;
  store_tail(*transfer, stream.loop().lanes);
  flying->is_answered = true;
  conclude(*qp);
  start_all(*qp);
}

void take_acknowledgement(Link& link, const Header& header) {
  std::unique_lock<std::mutex> lock;
  Qp* qp = find_requester(link, header, lock);
  if (qp == nullptr || header.sequence >= qp->send_queue.started) return;
  Outbound& out = get_outbound(*qp);
  out.acknowledged = std::max(out.acknowledged, header.sequence + 1);
  conclude(*qp);
  start_all(*qp);
}

void take_refusal(Link& link, const Header& header) {
  std::unique_lock<std::mutex> lock;
  Qp* qp = find_requester(link, header, lock);
  if (qp == nullptr) return;
  Outbound& out = get_outbound(*qp);
  if (out.round != header.round || out.refused != UINT64_MAX || header.sequence >= qp->send_queue.started)
    return;
  if (header.code == kGone) return fail(*qp, IBV_WC_RETRY_EXC_ERR);
  out.acknowledged = std::max(out.acknowledged, header.sequence);
  conclude(*qp);
  if (out.has_failed) return;
  if (header.code == kReceiverNotReady || header.code == kPeerNotReady) return wait_and_retry(*qp, header);
  out.refused = header.sequence;
  out.failure = explain(header.code);
  conclude(*qp);
}

void fail_requests(Link& link) {
  get_wire()->for_each_qp([&](Qp& qp) {
    const std::lock_guard lock(qp.mutex);
    const Outbound& out = get_outbound(qp);
    if (out.link.get() == &link && !out.flying.empty()) fail(qp, IBV_WC_RETRY_EXC_ERR);
  });
}

void flush_soon(Qp& qp) {
  const std::lock_guard lock(qp.mutex);
  if (get_state(*qp.shared) == IBV_QPS_ERR) call_worker(qp, 0);
}

void check_deadlines(Port& port) {
  constexpr uint64_t kFloorNs = 5'000'000'000;  // TCP itself may need so long to get over a bad moment
  get_wire()->for_each_qp([&](Qp& qp) {
    const std::unique_lock lock(qp.mutex, std::try_to_lock);
    if (!lock || &get_wire()->get_port(qp.device) != &port) return;
    Outbound& out = get_outbound(qp);
    if (out.flying.empty() || out.link == nullptr || out.has_failed) return;
    const uint64_t bound_ns = std::max(kFloorNs, wait_for_peer(qp).budget_ns);
    if (read_clock_ns() - out.since_ns > bound_ns && out.link->get_silence_ns() > bound_ns)
      fail(qp, IBV_WC_RETRY_EXC_ERR);
  });
}

}  // namespace verbena::softverbs::wire
