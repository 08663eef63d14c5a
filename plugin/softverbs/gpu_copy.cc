#include "softverbs/gpu_copy.h"

#include <algorithm>

#include "softverbs/gpu_import.h"
#include "softverbs/queue_pair.h"

namespace verbena::softverbs {
namespace {

uint32_t find_first_gpu(const Memory& memory) {
  const auto gpu = std::find_if(memory.gpus.begin(), memory.gpus.end(), [](uint32_t at) { return at != 0; });
  return gpu == memory.gpus.end() ? 0 : *gpu;
}

// The pieces of the remote side as addresses of this process; false when one has none.
bool address_all(const Operation& op, GpuLane* lane, Pieces& pieces) {
  pieces = op.remote.pieces;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const uint64_t there = reinterpret_cast<uint64_t>(pieces[i].iov_base);
    const uint64_t here = address_remote(op, lane, there, op.remote.gpus[i]);
    if (here == 0) return false;
    pieces[i].iov_base = reinterpret_cast<void*>(here);
  }
  return true;
}

bool issue(GpuLane& lane, const Pieces& to, const Pieces& from) {
  size_t at_to = 0, at_from = 0;
  uint64_t done_to = 0, done_from = 0;
  while (at_to < to.size() && at_from < from.size()) {
    const uint64_t take = std::min(to[at_to].iov_len - done_to, from[at_from].iov_len - done_from);
    const uint64_t to_address = reinterpret_cast<uint64_t>(to[at_to].iov_base) + done_to;
    const uint64_t from_address = reinterpret_cast<uint64_t>(from[at_from].iov_base) + done_from;
    if (!lane.copy(to_address, from_address, take)) return false;
    done_to += take;
    done_from += take;
    if (done_to == to[at_to].iov_len) ++at_to, done_to = 0;
    if (done_from == from[at_from].iov_len) ++at_from, done_from = 0;
  }
  return true;
}

}  // namespace

GpuLane* choose_lane(const Operation& op) {
  Process& process = *Process::get();
  GpuLanes& lanes = process.lanes[op.qp->device];
  if (const uint32_t local = find_first_gpu(op.local))
    return lanes.find(process.gpu_memory.get(local).context);
  const uint32_t remote = find_first_gpu(op.remote);
  return remote == 0 ? nullptr : lanes.find_near(op.peer->segment->gpu(remote - 1).device);
}

// Memory of the older calls is known to all contexts of its process; that of the virtual memory calls only to
// the devices that were given access, so another device gets a mapping of its own.
uint64_t address_remote(const Operation& op, GpuLane* lane, uint64_t address, uint32_t gpu) {
  if (gpu == 0) return op.peer->is_self ? address : 0;
  if (lane == nullptr) return 0;
  if (op.peer->is_self) {
    const bool is_lanes = Process::get()->gpu_memory.get(gpu).context == lane->context();
    if (is_lanes || op.peer->segment->gpu(gpu - 1).kind == kExportedAsIpc) return address;
  }
  const cuda::Driver& driver = *cuda::find_driver();
  cuda::enter(driver, lane->context());
  return get_gpu_imports().find(driver, lane->context(), *op.peer, gpu, address);
}

bool start_gpu_copies(Operation& op) {
  GpuLane* lane = choose_lane(op);
  if (lane == nullptr) return false;
  get_gpu_imports().begin_use();
  thread_local Pieces remote;
  if (!address_all(op, lane, remote)) {
    get_gpu_imports().end_use();
    return false;
  }
  const bool is_issued =
      is_read(op) ? issue(*lane, op.local.pieces, remote) : issue(*lane, remote, op.local.pieces);
  if (!is_issued) op.outcome = {Step::kFail, IBV_WC_GENERAL_ERR};
  op.lane = lane;
  op.lane_ticket = lane->ticket();
  return true;
}

LaneState look_at_lane(Operation& op) {
  const LaneState state = op.lane->look(op.lane_ticket);
  if (state != LaneState::kBusy) get_gpu_imports().end_use();
  return state;
}

}  // namespace verbena::softverbs
