#include "nccl/net_profiler.h"

namespace verbena::nccl {

namespace {

int find_opcode(observe::NetEvent::Kind kind) {
  constexpr int kWriteWithImm = 1, kSendWithImm = 3;  // ibv_wr_opcode
  if (kind == observe::NetEvent::Kind::kReceive) return abi::kUndefined;
  return kind == observe::NetEvent::Kind::kWrite ? kWriteWithImm : kSendWithImm;
}

}  // namespace

// The handle stays null where no profiler is loaded, or none wants network events of this operation.
void* NetProfiler::begin(void* parent, const observe::NetEvent& event) {
  abi::NetIbEvent described;
  described.device = event.rail < devices_.size() ? devices_[event.rail] : abi::kUndefined;
  described.work_request = event.sequence;
  described.opcode = find_opcode(event.kind);
  described.qp_number = static_cast<int>(event.qp_number);
  described.length_bytes = event.bytes;
  void* handle = nullptr;
  callback_(&handle, abi::kProfilerStart, parent, abi::kNetEventsOfIb, &described);
  return handle;
}

void NetProfiler::end(void* event) {
  callback_(&event, abi::kProfilerStop, nullptr, 0, nullptr);
}

}  // namespace verbena::nccl
