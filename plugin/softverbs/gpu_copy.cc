#include "softverbs/gpu_copy.h"

#include <algorithm>
#include <cstring>

#include "softverbs/gpu_import.h"
#include "softverbs/queue_pair.h"

namespace verbena::softverbs {
namespace {

// Of writes: what takes longer than the driver's call gains nothing in a batch.
constexpr uint64_t kSmallCopy = 4096;

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

// Both sides cut into copies. `near` are the local pieces, `far` the remote ones as addresses of this
// process.
void issue(GpuLane& lane, const Operation& op, const Pieces& near, const Pieces& far) {
  size_t at_near = 0, at_far = 0;
  uint64_t done_near = 0, done_far = 0;
  while (at_near < near.size() && at_far < far.size()) {
    const uint64_t take = std::min(near[at_near].iov_len - done_near, far[at_far].iov_len - done_far);
    const uint64_t near_address = reinterpret_cast<uint64_t>(near[at_near].iov_base) + done_near;
    const uint64_t far_address = reinterpret_cast<uint64_t>(far[at_far].iov_base) + done_far;
    const uint64_t origin = uint64_t{op.local.keys[at_near]} << 32 | op.remote.keys[at_far];
    if (is_read(op)) {
      lane.copy({near_address, far_address, take, origin});
    } else {
      const bool may_overtake = is_send(op.request->opcode) || (op.remote.is_relaxed && take <= kSmallCopy);
      lane.copy({far_address, near_address, take, origin, may_overtake});
    }
    done_near += take;
    done_far += take;
    if (done_near == near[at_near].iov_len) ++at_near, done_near = 0;
    if (done_far == far[at_far].iov_len) ++at_far, done_far = 0;
  }
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
  const cuda::Use use;
  if (!use) return 0;
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
  op.lane = lane;
  op.lane_first = lane->ticket();
  issue(*lane, op, op.local.pieces, remote);
  op.lane_last = lane->ticket();
  return true;
}

bool can_be_carried(const Operation& write, const Operation& change) {
  constexpr uint64_t kWord = sizeof(uint64_t);
  if (!write.remote.has_gpu || write.local.pieces.size() != 1 || write.remote.pieces.size() != 1)
    return false;
  if (write.bytes % kWord != 0 || write.bytes > kCarriedWords * kWord) return false;
  if (reinterpret_cast<uint64_t>(write.remote.pieces[0].iov_base) % kWord != 0) return false;
  Segment& segment = *write.peer->segment;
  return segment.gpu(write.remote.gpus[0] - 1).context == segment.gpu(change.remote.gpus[0] - 1).context;
}

bool reserve_carried(Operation& write) {
  write.lane = write.local.has_gpu ? choose_lane(write) : nullptr;
  if (write.local.has_gpu && write.lane == nullptr) return false;
  write.carried = Process::get()->staging[write.qp->device].take_words();
  return write.carried != nullptr;
}

void load_carried(Operation& write) {
  write.carried_looks = 0;
  write.is_carried_loaded = write.lane == nullptr;
  if (write.is_carried_loaded) {
    memcpy(write.carried, write.local.pieces[0].iov_base, write.bytes);
    return;
  }
  std::fill_n(write.carried, write.bytes / sizeof(uint64_t), kNotLoaded);
  const uint64_t from = reinterpret_cast<uint64_t>(write.local.pieces[0].iov_base);
  const uint64_t to = reinterpret_cast<uint64_t>(write.carried);
  write.lane_first = write.lane->ticket();
  write.lane->copy({to, from, write.bytes, to});
  write.lane_last = write.lane->ticket();
  write.lane->issue_pending();
}

LaneState look_at_carried(Operation& write) {
  if (write.is_carried_loaded) return LaneState::kDone;
  const volatile uint64_t* const words = write.carried;
  const auto end = words + write.bytes / sizeof(uint64_t);
  LaneState state = LaneState::kDone;
  if (std::any_of(words, end, [](uint64_t word) { return word == kNotLoaded; })) {
    const bool asks = ++write.carried_looks % kLooksPerQuery == 0;
    state = asks ? write.lane->look(write.lane_first, write.lane_last) : LaneState::kBusy;
  }
  write.is_carried_loaded = state == LaneState::kDone;
  return state;
}

void drop_carried(Operation& write) {
  Process::get()->staging[write.qp->device].give_back(write.carried);
  write.carried = nullptr;
}

LaneState look_at_lane(Operation& op) {
  const LaneState state = op.lane->look(op.lane_first, op.lane_last);
  if (state != LaneState::kBusy) get_gpu_imports().end_use();
  return state;
}

}  // namespace verbena::softverbs
