#include "softverbs/wire/responder.h"

#include <algorithm>

#include "softverbs/engine/atomic_operation.h"
#include "softverbs/engine/memory_region.h"
#include "softverbs/engine/memory_window.h"
#include "softverbs/faults/rails.h"
#include "softverbs/shared/clock.h"
#include "softverbs/wire/end.h"
#include "softverbs/wire/wire.h"

namespace verbena::softverbs::wire {
namespace {

Inbound& get_inbound(Qp& qp) {
  return qp.wire->inbound;
}

void refuse(Stream& stream, const Header& request, uint64_t sequence, Reason reason, uint32_t timer = 0) {
  Header refusal = make_reply(Kind::kRefusal, request, sequence);
  refusal.code = reason;
  refusal.immediate = timer;
  stream.control(refusal);
}

std::vector<ClientRound>::iterator find_client(std::vector<ClientRound>& clients, const ProcessLink& link,
                                               const Header& header) {
  return std::find_if(clients.begin(), clients.end(), [&](const ClientRound& client) {
    return client.source_qp == header.source_qp && is_same(client.peer, link.peer());
  });
}

void remember_client(std::vector<ClientRound>& clients, const ProcessLink& link, const Header& header) {
  constexpr size_t kMost = 16;
  const auto known = find_client(clients, link, header);
  if (known != clients.end()) clients.erase(known);
  if (clients.size() == kMost) clients.erase(clients.begin());
  clients.push_back({link.peer(), header.source_qp, header.round, header.session});
}

// Returns whether the frame belongs to a session that a reset of this queue pair has ended. The requests that
// were executed before the reset will not come again, so a later request must not wait for them.
bool is_ended(Inbound& in, const ProcessLink& link, const Header& header) {
  const auto known = find_client(in.begun, link, header);
  return known != in.begun.end() && header.session <= known->session;
}

// Lets the held streams try again. Needs the inbound mutex.
void release_held(Inbound& in) {
  for (HeldStream& held : in.held) {
    held.stream->loop().post([held] { held.stream->resume(); });
  }
  in.held.clear();
}

// Drops the rest of the round.
Verdict end_round(Inbound& in, const Header& header) {
  in.round = header.round + 1;
  in.current.reset();
  release_held(in);
  return Verdict::kDrop;
}

// Refuses the expected message.
Verdict refuse_round(Inbound& in, Stream& stream, const Header& header, Reason reason, uint32_t timer = 0) {
  refuse(stream, header, in.expected, reason, timer);
  return end_round(in, header);
}

// Refuses the message so that both queue pairs end in the error state.
Verdict refuse_for_good(Qp& qp, Stream& stream, const Header& header, InboundMessage& message,
                        ibv_wc_status status) {
  PeerFailure failure{};
  find_peer_failure(status, failure);
  if (message.op.has_receive) complete_receive(message.op, failure.receive_status);
  const Verdict verdict = refuse_round(get_inbound(qp), stream, header, get_reason(status));
  fail_target(Process::get()->self(), qp.index, failure.event);
  // If a queue pair is its own peer, the requester handles the failure.
  const bool is_own =
      header.source_qp == qp.base.qp_num && is_same(stream.link().peer(), stream.link().port.address);
  if (is_own) return verdict;
  stream.loop().at_end([number = qp.base.qp_num] {
    if (Qp* failed = get_wire()->find_qp(number)) flush_soon(*failed);
  });
  return verdict;
}

void fill_request(SendRequest& request, const Header& header) {
  request.opcode = static_cast<ibv_wr_opcode>(header.code);
  request.flags = (header.flags & kSolicited) != 0 ? IBV_SEND_SOLICITED : 0;
  request.immediate = header.immediate;
  request.rkey = header.key;
  request.remote_address = header.address;
  request.length = header.bytes;
}

std::shared_ptr<InboundMessage> make_message(Qp& qp, const Header& header) {
  auto message = std::make_shared<InboundMessage>();
  message->first = header;
  message->bytes = header.bytes;
  fill_request(message->request, header);
  Operation& op = message->op;
  op.peer = &Process::get()->self();
  op.target = qp.shared;
  op.target_index = qp.index;
  op.request = &message->request;
  op.source_qp = header.source_qp;
  message->target.qp_index = qp.index;
  message->target.life = qp.shared->life.get();
  return message;
}

ibv_wc_status check_receive(InboundMessage& message, uint32_t queue_pd) {
  message.target.pieces = message.op.receive.sges;
  message.target.pd = queue_pd;
  message.target.access = IBV_ACCESS_LOCAL_WRITE;
  uint64_t room = 0;
  for (const SharedSge& sge : message.target.pieces) room += sge.length;
  if (room < message.bytes) return IBV_WC_REM_INV_REQ_ERR;
  Memory memory;
  return resolve(message.target, 0, message.bytes, memory) ? IBV_WC_SUCCESS : IBV_WC_REM_OP_ERR;
}

ibv_wc_status check_named(InboundMessage& message, Qp& qp) {
  const StepOutcome outcome = name_remote(message.op);
  if (outcome.step != Step::kDone) return outcome.status;
  message.target.pieces = {{message.request.remote_address, message.bytes, message.request.rkey}};
  message.target.pd = qp.shared->pd.get();
  message.target.access = get_needed_access(message.request.opcode);
  message.target.qp_number = qp.base.qp_num;
  return IBV_WC_SUCCESS;
}

// Returns the status with which a poisoned request is refused.
ibv_wc_status get_poison(const Header& header) {
  if (header.immediate > IBV_WC_GENERAL_ERR) return IBV_WC_REM_OP_ERR;
  const auto status = static_cast<ibv_wc_status>(header.immediate);
  PeerFailure failure{};
  return find_peer_failure(status, failure) ? status : IBV_WC_REM_OP_ERR;
}

// Begins the expected message.
Verdict begin_message(Qp& qp, Stream& stream, const Header& header) {
  Inbound& in = get_inbound(qp);
  auto message = make_message(qp, header);
  if ((header.flags & kPoisoned) != 0)
    return refuse_for_good(qp, stream, header, *message, get_poison(header));
  ibv_wc_status status = IBV_WC_SUCCESS;
  const bool is_sent = is_send(message->request.opcode);
  if (!is_sent) status = check_named(*message, qp);
  if (header.code == IBV_WR_SEND_WITH_INV && !can_invalidate(message->op)) status = IBV_WC_REM_INV_REQ_ERR;
  if (status == IBV_WC_SUCCESS && (is_sent || header.code == IBV_WR_RDMA_WRITE_WITH_IMM)) {
    if (!take_receive(message->op))
      return refuse_round(in, stream, header, kReceiverNotReady, qp.shared->min_rnr_timer.get());
    const uint32_t pd = Process::get()->segment().receive_queue(qp.shared->receive_queue.get()).pd.get();
    if (is_sent) status = check_receive(*message, pd);
  }
  if (status != IBV_WC_SUCCESS) return refuse_for_good(qp, stream, header, *message, status);
  if (in.expected == 0) remember_client(in.begun, stream.link(), header);
  in.current = std::move(message);
  return Verdict::kPlace;
}

// Called when the expected message has been executed.
void finish_message(Qp& qp, Inbound& in) {
  count_carried_out(qp, *qp.shared, in.current->request.length);
  in.current.reset();
  ++in.expected;
  release_held(in);
}

Verdict begin_read(Qp& qp, Stream& stream, const Header& header) {
  if (!stream.link().has_room()) return Verdict::kBreak;
  auto source = std::make_unique<Target>(get_inbound(qp).current->target);
  finish_message(qp, get_inbound(qp));
  respond(stream, header, std::move(source), {});
  return Verdict::kDrop;
}

bool is_from_peer(const Qp& qp, const ProcessLink& link, const Header& header) {
  ibv_gid peer;
  return qp.shared->peer_number.get() == header.source_qp &&
         find_address(qp.attributes.ah_attr.grh.dgid, peer) && is_same(peer, link.peer());
}

// Returns whether a chunk agrees with the message that it claims to continue.
bool continues(const InboundMessage& message, const Header& header) {
  const Header& first = message.first;
  return first.code == header.code && first.bytes == header.bytes && first.address == header.address &&
         first.key == header.key && first.round == header.round && has_payload(header.code);
}

// The queue pair does not know its peer yet, so the client has to try again later.
Verdict refuse_early(Inbound& in, const ProcessLink& link, Stream& stream, const Header& header) {
  const auto known = find_client(in.early, link, header);
  const bool is_refused =
      known != in.early.end() && known->session == header.session && header.round <= known->round;
  if (is_refused) return Verdict::kDrop;
  remember_client(in.early, link, header);
  refuse(stream, header, 0, kPeerNotReady);
  return Verdict::kDrop;
}

void enter_session(Inbound& in, const ProcessLink& link, const Header& header) {
  in.session = header.session;
  const auto early = find_client(in.early, link, header);
  in.round = early != in.early.end() && early->session == header.session ? early->round + 1 : 0;
  in.expected = 0;
  in.is_lost = false;
  in.current.reset();
  release_held(in);
}

Verdict take_in_order(Qp& qp, ProcessLink& link, Stream& stream, const Header& header) {
  Inbound& in = get_inbound(qp);
  const bool is_abandoned = header.kind == Kind::kAbandon;
  if (header.sequence < in.expected) return is_abandoned ? Verdict::kDrop : Verdict::kBreak;
  if (header.sequence > in.expected) {
    if (in.is_lost) return refuse_round(in, stream, header, kGone);
    in.held.push_back({link.shared_from_this(), &stream, read_clock_ns()});
    return Verdict::kHold;
  }
  if (is_abandoned) return end_round(in, header);
  if (in.current != nullptr) return continues(*in.current, header) ? Verdict::kPlace : Verdict::kBreak;
  if (faults::is_down(Process::get()->segment(), qp.device))
    return refuse_round(in, stream, header, kPeerNotReady);
  in.round = header.round;
  const Verdict verdict = begin_message(qp, stream, header);
  return verdict == Verdict::kPlace && header.code == IBV_WR_RDMA_READ ? begin_read(qp, stream, header)
                                                                       : verdict;
}

}  // namespace

Verdict begin_request(ProcessLink& link, Stream& stream, const Header& header,
                      std::shared_ptr<Transfer>& transfer) {
  Qp* qp = get_wire()->find_qp(header.target_qp);
  if (qp == nullptr || qp->base.qp_type != IBV_QPT_RC) {
    if (header.kind == Kind::kRequest) refuse(stream, header, header.sequence, kGone);
    return Verdict::kDrop;
  }
  if (!link.is_known()) link.note_call();
  Inbound& in = get_inbound(*qp);
  const std::lock_guard lock(in.mutex);
  const ibv_qp_state state = get_state(*qp->shared);
  const bool is_early = state == IBV_QPS_RESET || state == IBV_QPS_INIT;
  const bool is_strange = !is_early && (!is_from_peer(*qp, link, header) || header.session < in.session);
  const bool is_new = is_early || header.session > in.session;
  // A frame that is not from the peer, or from an earlier session, changes nothing here. Its sender gets a
  // refusal.
  if (state == IBV_QPS_ERR || is_strange || (is_new && is_ended(in, link, header))) {
    if (header.kind == Kind::kRequest) refuse(stream, header, header.sequence, kGone);
    return Verdict::kDrop;
  }
  if (is_early) return refuse_early(in, link, stream, header);
  link.set_known();
  if (is_new) enter_session(in, link, header);
  if (header.round < in.round) return Verdict::kDrop;
  const Verdict verdict = take_in_order(*qp, link, stream, header);
  if (verdict == Verdict::kPlace) transfer = in.current;
  return verdict;
}

void end_request(Stream& stream, const Header& header, const std::shared_ptr<Transfer>& transfer) {
  Qp* qp = get_wire()->find_qp(header.target_qp);
  if (qp == nullptr) return;
  Inbound& in = get_inbound(*qp);
  const std::lock_guard lock(in.mutex);
  if (in.current != transfer || get_state(*qp->shared) == IBV_QPS_ERR) return;
  if (header.length > transfer->bytes - transfer->received)
    return stream.link().fail("a message is too long");
  transfer->received += header.length;
  if (transfer->received < transfer->bytes) return;
  store_tail(*transfer, stream.loop());
  InboundMessage& message = *in.current;
  if (transfer->error.load() != 0) {
    refuse_for_good(*qp, stream, header, message, IBV_WC_REM_OP_ERR);
    return;
  }
  if (header.code == IBV_WR_SEND_WITH_INV) invalidate_remote(message.op);
  if (message.op.has_receive) complete_receive(message.op, IBV_WC_SUCCESS);
  stream.acknowledge(make_reply(Kind::kAcknowledge, header, header.sequence));
  finish_message(*qp, in);
}

void execute_request(Stream& stream, const Header& header, Transfer& transfer, const uint8_t* operands) {
  Qp* qp = get_wire()->find_qp(header.target_qp);
  if (qp == nullptr) return;
  Inbound& in = get_inbound(*qp);
  const std::lock_guard lock(in.mutex);
  if (in.current.get() != &transfer || get_state(*qp->shared) == IBV_QPS_ERR) return;
  const std::shared_ptr<InboundMessage> message = in.current;
  memcpy(&message->request.compare_add, operands, sizeof(uint64_t));
  memcpy(&message->request.swap, operands + sizeof(uint64_t), sizeof(uint64_t));
  std::vector<uint8_t> result(kAtomicResult);
  message->op.local.clear();
  message->op.local.add(reinterpret_cast<uint64_t>(result.data()), result.size(), 0, 0);
  message->op.remote.clear();
  const StepOutcome named = name_remote(message->op);
  const StepOutcome outcome = named.step == Step::kDone ? execute_atomic(message->op) : named;
  if (outcome.step != Step::kDone) {
    refuse_for_good(*qp, stream, header, *message, outcome.status);
    return;
  }
  finish_message(*qp, in);
  respond(stream, header, nullptr, std::move(result));
}

void check_held(Port& port) {
  constexpr uint64_t kPatienceNs = 60'000'000'000;
  get_wire()->for_each_qp([&](Qp& qp) {
    if (&get_wire()->get_port(qp.device) != &port) return;
    Inbound& in = get_inbound(qp);
    const std::lock_guard lock(in.mutex);
    if (in.held.empty() || read_clock_ns() - in.held.front().since_ns < kPatienceNs) return;
    in.is_lost = true;
    release_held(in);
  });
}

void forget_inbound(Qp& qp, bool is_reset) {
  Inbound& in = get_inbound(qp);
  const std::lock_guard lock(in.mutex);
  in.current.reset();
  release_held(in);
  if (!is_reset) return;
  in.session = in.expected = 0;
  in.round = 0;
  in.is_lost = false;
}

}  // namespace verbena::softverbs::wire
