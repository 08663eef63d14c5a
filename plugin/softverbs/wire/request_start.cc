#include <algorithm>

#include "softverbs/engine/memory_window.h"
#include "softverbs/faults/gate.h"
#include "softverbs/faults/rails.h"
#include "softverbs/shared/clock.h"
#include "softverbs/wire/end.h"
#include "softverbs/wire/wire.h"

// Starts requests: decides which requests may be sent, and as which messages.
namespace verbena::softverbs::wire {
namespace {

constexpr size_t kMaxFlying = 256;            // maximum number of outstanding requests of a queue pair
constexpr uint32_t kStripeBytes = 128 << 10;  // longer payloads use all streams
constexpr uint32_t kMaxChunkBytes = 512 << 10;

Outbound& get_outbound(Qp& qp) {
  return qp.wire->outbound;
}

bool has_answer(ibv_wr_opcode opcode) {
  return opcode == IBV_WR_RDMA_READ || is_atomic(opcode);
}

bool find_link(Qp& qp) {
  Outbound& out = get_outbound(qp);
  if (out.link != nullptr && !out.link->is_dead()) return true;
  if (!out.flying.empty()) return false;  // they fail together with their link
  ibv_gid address;
  out.link = find_address(qp.attributes.ah_attr.grh.dgid, address)
                 ? get_wire()->get_link(qp.device, address, qp.attributes.dest_qp_num)
                 : nullptr;
  if (out.link == nullptr) fail_late(qp);
  return out.link != nullptr;
}

Header make_header(const Qp& qp, const SendRequest& request) {
  Header header{};
  header.kind = Kind::kRequest;
  header.code = static_cast<uint8_t>(request.opcode);
  if ((request.flags & IBV_SEND_SOLICITED) != 0) header.flags = kSolicited;
  header.source_qp = qp.base.qp_num;
  header.target_qp = qp.attributes.dest_qp_num;
  header.session = qp.wire->outbound.session;
  header.sequence = request.number - qp.wire->outbound.locals;
  header.round = qp.wire->outbound.round;
  header.immediate = request.immediate;
  header.bytes = static_cast<uint32_t>(request.length);
  header.address = request.remote_address;
  header.key = request.rkey;
  return header;
}

// The destination of a request's response.
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

void choose_streams(OutMessage& message, ProcessLink& link) {
  const uint32_t streams = link.hello.streams;
  if (streams == 1 || message.payload_bytes <= kStripeBytes) {
    message.primary = link.choose_primary(message.qp_index);
    message.chunk_bytes = kMaxChunkBytes;
    return;
  }
  constexpr uint32_t kGrain = 4096;
  const uint32_t share = (message.payload_bytes / streams + kGrain) / kGrain * kGrain;
  message.primary = kAnyStream;
  message.chunk_bytes = std::clamp(share, kStripeBytes / 2, kMaxChunkBytes);
}

// Sends a poisoned request, because the plan wants the queue pair at the other end to fail.
void poison(Qp& qp, const SendRequest& request, ibv_wc_status status) {
  if (!find_link(qp)) return;
  auto message = std::make_shared<OutMessage>();
  message->header = make_header(qp, request);
  message->header.code = IBV_WR_RDMA_WRITE;
  message->header.flags = kPoisoned;
  message->header.immediate = status;
  message->header.bytes = 0;
  message->qp_index = UINT32_MAX;  // so that it is sent even when the queue pair gives up its messages
  message->primary = get_outbound(qp).link->choose_primary(qp.index);
  get_outbound(qp).link->submit(std::move(message), true);
}

// Returns false if a rail is down, or if the fault plan delays the next request or makes it fail.
bool passes_faults(Qp& qp, const SendRequest& request) {
  Outbound& out = get_outbound(qp);
  StepOutcome outcome;
  if (qp.faults != nullptr) outcome = faults::check_start(qp, request);
  if (outcome.step == Step::kDone && faults::is_down(Process::get()->segment(), qp.device))
    outcome = wait_for_rail(qp);
  if (outcome.step == Step::kDone) {
    if (qp.wait == Wait::kRailDown || qp.wait == Wait::kDelayed) qp.wait = Wait::kNone;
    return true;
  }
  if (outcome.step == Step::kWait && keep_waiting(qp, outcome)) {
    constexpr uint64_t kLookNs = 1'000'000;
    const bool is_delayed = outcome.wait == Wait::kDelayed;
    const uint64_t rest_ns = is_delayed ? faults::get_delay_ns(qp, request) : kLookNs;
    out.is_waiting = true;
    call_worker(qp, std::clamp<uint64_t>(rest_ns, 1, kLookNs));
    return false;
  }
  out.refused = request.number;
  out.failure = outcome.status;
  if (qp.faults != nullptr && faults::fails_far_end(qp, request)) poison(qp, request, outcome.status);
  if (out.flying.empty()) fail_oldest(qp, outcome.status);
  return false;
}

bool can_start(Qp& qp) {
  Outbound& out = get_outbound(qp);
  SendQueue& queue = qp.send_queue;
  if (queue.started == queue.posted || get_state(*qp.shared) != IBV_QPS_RTS) return false;
  if (out.is_waiting || out.has_failed || out.refused != UINT64_MAX || out.flying.size() >= kMaxFlying)
    return false;
  const SendRequest& request = queue.at(queue.started);
  if (is_local(request.opcode)) {
    if (out.flying.empty() && !qp.is_running)
      call_worker(qp, 0);  // the worker, because it may wait for loops
    return false;
  }
  const uint32_t limit = std::max<uint32_t>(qp.attributes.max_rd_atomic, 1);
  if (has_answer(request.opcode) && out.answers_owed >= limit) return false;
  if ((request.flags & IBV_SEND_FENCE) != 0 && out.answers_owed > 0) return false;
  return passes_faults(qp, request) && find_link(qp);
}

// Passes the next request to the link. Returns false if it cannot start.
bool start_next(Qp& qp) {
  Outbound& out = get_outbound(qp);
  SendRequest& request = qp.send_queue.at(qp.send_queue.started);
  Operation op;
  op.qp = &qp;
  op.request = &request;
  if (!gather_local(op)) {
    if (out.flying.empty()) fail_oldest(qp, IBV_WC_LOC_PROT_ERR);
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

}  // namespace

void start_all(Qp& qp) {
  while (can_start(qp) && start_next(qp)) {
  }
}

}  // namespace verbena::softverbs::wire
