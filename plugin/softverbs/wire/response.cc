#include "softverbs/engine/memory_region.h"
#include "softverbs/wire/end.h"
#include "softverbs/wire/wire.h"

// The replies of a responder.
namespace verbena::softverbs::wire {

Header make_reply(Kind kind, const Header& request, uint64_t sequence) {
  Header reply{};
  reply.kind = kind;
  reply.source_qp = request.target_qp;
  reply.target_qp = request.source_qp;
  reply.session = request.session;
  reply.sequence = sequence;
  reply.round = request.round;
  return reply;
}

Reason get_reason(ibv_wc_status status) {
  switch (status) {
    case IBV_WC_REM_ACCESS_ERR:
      return kAccessError;
    case IBV_WC_REM_INV_REQ_ERR:
      return kInvalidRequest;
    default:
      return kOperationError;
  }
}

void respond(Stream& stream, const Header& request, std::unique_ptr<Target> source,
             std::vector<uint8_t> copy) {
  auto message = std::make_shared<OutMessage>();
  message->header = make_reply(Kind::kResponse, request, request.sequence);
  message->header.bytes = message->payload_bytes = request.bytes;
  message->qp_index = get_qp_index(request.target_qp);
  message->copy = std::move(copy);
  message->local.add(reinterpret_cast<uint64_t>(message->copy.data()), message->copy.size(), 0, 0);
  if (source != nullptr) {
    Memory memory;
    message->local.clear();
    message->local.has_gpu = resolve(*source, 0, request.bytes, memory) && memory.has_gpu;
    message->source = std::move(source);
  }
  constexpr uint32_t kStripeBytes = 128 << 10;
  message->chunk_bytes = 2 * kStripeBytes;
  message->primary = request.bytes <= kStripeBytes ? stream.index : kAnyStream;
  stream.link().submit(std::move(message), true);
}

// The memory of a READ cannot be read any more.
Header refuse_response(const OutMessage& message, ibv_wc_status status) {
  const SharedQp& qp = Process::get()->segment().qp(message.source->qp_index);
  const bool is_alive = qp.life.get() == message.source->life && get_state(qp) != IBV_QPS_ERR;
  Header refusal = message.header;
  refusal.kind = Kind::kRefusal;
  refusal.code = is_alive ? get_reason(status) : kGone;
  refusal.length = 0;
  return refusal;
}

void fail_responder(const Target& source, ibv_wc_status status) {
  Process& process = *Process::get();
  SharedQp& shared = process.segment().qp(source.qp_index);
  PeerFailure failure{};
  const bool is_same = shared.life.get() == source.life && find_peer_failure(status, failure);
  if (!is_same || get_state(shared) == IBV_QPS_ERR) return;
  fail_target(process.self(), source.qp_index, failure.event);
  if (Qp* qp = get_wire()->find_qp(shared.number.load())) flush_soon(*qp);
}

}  // namespace verbena::softverbs::wire
