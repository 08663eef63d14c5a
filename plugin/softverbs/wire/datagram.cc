#include "softverbs/engine/datagram.h"

#include <cstring>

#include "softverbs/faults/rails.h"
#include "softverbs/gpu/gpu_copy.h"
#include "softverbs/shared/copy.h"
#include "softverbs/wire/end.h"
#include "softverbs/wire/wire.h"

namespace verbena::softverbs::wire {
namespace {

constexpr uint32_t kPrivilegedQkey = 1u << 31;  // such a key in a request selects the queue pair's own key

ibv_grh make_grh(const ProcessLink& link, uint32_t bytes) {
  ibv_grh header{};
  header.version_tclass_flow = htobe32(6u << 28);
  header.paylen = htobe16(static_cast<uint16_t>(bytes));
  header.next_hdr = 0x1b;
  header.hop_limit = 64;
  memcpy(&header.sgid, link.hello.source, sizeof(header.sgid));
  memcpy(&header.dgid, link.hello.destination, sizeof(header.dgid));
  return header;
}

bool accepts(const Qp& qp, const Header& header) {
  const ibv_qp_state state = get_state(*qp.shared);
  return qp.base.qp_type == IBV_QPT_UD && qp.shared->qkey.get() == header.key &&
         (state == IBV_QPS_RTR || state == IBV_QPS_RTS || state == IBV_QPS_SQD);
}

}  // namespace

void send_datagram(Operation& op) {
  constexpr size_t kMuch = 1024;
  const SendRequest& request = *op.request;
  const Ah& handle = *reinterpret_cast<const Ah*>(request.address_handle);
  ibv_gid address;
  if (!find_address(handle.attributes.grh.dgid, address)) return;
  const auto link = get_wire()->get_link(op.qp->device, address, request.remote_qp);
  if (link == nullptr || !link->has_room(kMuch)) return;
  auto message = std::make_shared<OutMessage>();
  message->copy.resize(count_bytes(op.local.pieces));
  if (!read_local(op, message->copy.data())) return;
  const auto bytes = static_cast<uint32_t>(message->copy.size());
  message->local.add(reinterpret_cast<uint64_t>(message->copy.data()), bytes, 0, 0);
  message->payload_bytes = bytes;
  message->qp_index = UINT32_MAX;  // no queue pair can cancel it
  Header& header = message->header;
  header.kind = Kind::kDatagram;
  header.code = static_cast<uint8_t>(request.opcode);
  if ((request.flags & IBV_SEND_SOLICITED) != 0) header.flags = kSolicited;
  header.source_qp = op.qp->base.qp_num;
  header.target_qp = request.remote_qp;
  header.immediate = request.immediate;
  header.bytes = bytes;
  const bool uses_own = (request.remote_qkey & kPrivilegedQkey) != 0;
  header.key = uses_own ? op.qp->attributes.qkey : request.remote_qkey;
  link->submit(std::move(message), true);
}

void deliver_datagram(Loop& loop, ProcessLink& link, const Header& header, const uint8_t* payload) {
  Qp* qp = get_wire()->find_qp(header.target_qp);
  if (qp == nullptr || !accepts(*qp, header)) return;
  link.set_known();
  if (faults::is_down(Process::get()->segment(), qp->device)) return;
  SendRequest request{};
  request.opcode = static_cast<ibv_wr_opcode>(header.code);
  request.flags = (header.flags & kSolicited) != 0 ? IBV_SEND_SOLICITED : 0;
  request.immediate = header.immediate;
  Operation op;
  op.peer = &Process::get()->self();
  op.target = qp->shared;
  op.target_index = qp->index;
  op.request = &request;
  op.source_qp = header.source_qp;
  op.is_datagram = true;
  Segment& segment = Process::get()->segment();
  SharedReceiveQueue& queue = segment.receive_queue(qp->shared->receive_queue.get());
  if (!pop_receive(segment, queue, qp->index, op.receive, Take::kAtOnce)) return;
  op.has_receive = true;
  ibv_grh grh = make_grh(link, header.bytes);
  op.bytes = sizeof(grh) + header.bytes;
  op.fits = scatter_datagram(op);
  if (op.fits) {
    uint8_t bytes[sizeof(grh) + kMaxDatagramBytes];
    memcpy(bytes, &grh, sizeof(grh));
    memcpy(bytes + sizeof(grh), payload, header.bytes);
    op.fits = store_memory(loop, op.remote, bytes);
  }
  complete_receive(op, op.fits ? IBV_WC_SUCCESS : IBV_WC_LOC_LEN_ERR);
}

}  // namespace verbena::softverbs::wire
