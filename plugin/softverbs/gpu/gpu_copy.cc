#include "softverbs/gpu/gpu_copy.h"

#include <algorithm>
#include <cstring>

#include "softverbs/engine/queue_pair.h"

namespace verbena::softverbs {
namespace {

// The limit for writes. A copy that takes longer than the driver call does not benefit from a batch.
constexpr uint64_t kSmallCopy = 4096;

uint32_t find_first_gpu(const Memory& memory) {
  const auto gpu = std::find_if(memory.gpus.begin(), memory.gpus.end(), [](uint32_t at) { return at != 0; });
  return gpu == memory.gpus.end() ? 0 : *gpu;
}

// Lists the copies of an operation in order. Returns false if the copier cannot access a piece.
bool list_copies(const Operation& op, GpuLane& lane, std::vector<GpuCopy>& copies) {
  copies.clear();
  const Pieces &near = op.local.pieces, &far = op.remote.pieces;
  size_t at_near = 0, at_far = 0;
  uint64_t done_near = 0, done_far = 0;
  while (at_near < near.size() && at_far < far.size()) {
    const uint64_t take = std::min(near[at_near].iov_len - done_near, far[at_far].iov_len - done_far);
    const uint64_t near_address = reinterpret_cast<uint64_t>(near[at_near].iov_base) + done_near;
    const uint64_t far_address = reinterpret_cast<uint64_t>(far[at_far].iov_base) + done_far;
    const uint64_t origin = uint64_t{op.local.keys[at_near]} << 32 | op.remote.keys[at_far];
    AreaAddress here, there;
    if (!address_own(lane, near_address, op.local.gpus[at_near], here) ||
        !address_remote(op, &lane, far_address, op.remote.gpus[at_far], there))
      return false;
    if (is_read(op)) {
      copies.push_back({here, there, take, origin});
    } else {
      const bool may_overtake = is_send(op.request->opcode) || (op.remote.is_relaxed && take <= kSmallCopy);
      copies.push_back({there, here, take, origin, may_overtake});
    }
    done_near += take;
    done_far += take;
    if (done_near == near[at_near].iov_len) ++at_near, done_near = 0;
    if (done_far == far[at_far].iov_len) ++at_far, done_far = 0;
  }
  return true;
}

}  // namespace

GpuLane* choose_lane(const Operation& op) {
  Process& process = *Process::get();
  GpuLanes& lanes = process.lanes[op.qp->device];
  if (const uint32_t local = find_first_gpu(op.local))
    return lanes.find(process.gpu_memory.get(local).device);
  const uint32_t remote = find_first_gpu(op.remote);
  if (remote == 0) return nullptr;
  uint32_t device = 0;
  GpuLane* const near = process.copier.find_device(op.peer->segment->gpu(remote - 1).device, device)
                            ? lanes.find(device)
                            : nullptr;
  return near != nullptr ? near : lanes.find_any();
}

// An allocation is mapped for the device that has it. For another device it is mapped like an allocation of a
// peer.
bool address_own(GpuLane& lane, uint64_t address, uint32_t gpu, AreaAddress& found) {
  if (gpu == 0) {
    found = {kThisProcess, address};
    return true;
  }
  Process& process = *Process::get();
  const GpuAllocation& allocation = process.gpu_memory.get(gpu);
  if (allocation.device != lane.device())
    return process.imports.find(process.copier, lane.device(), process.self(), gpu, address, found);
  found = {allocation.area, address - allocation.base};
  return true;
}

bool address_remote(const Operation& op, GpuLane* lane, uint64_t address, uint32_t gpu, AreaAddress& found) {
  if (lane == nullptr || (gpu == 0 && !op.peer->is_self)) return false;
  if (op.peer->is_self) return address_own(*lane, address, gpu, found);
  Process& process = *Process::get();
  return process.imports.find(process.copier, lane->device(), *op.peer, gpu, address, found);
}

bool start_gpu_copies(Operation& op) {
  GpuLane* lane = choose_lane(op);
  if (lane == nullptr) return false;
  GpuImports& imports = Process::get()->imports;
  imports.begin_use();
  thread_local std::vector<GpuCopy> copies;  // static, to keep its capacity
  if (!list_copies(op, *lane, copies)) {
    imports.end_use();
    return false;
  }
  op.lane = lane;
  op.lane_first = lane->ticket();
  for (const GpuCopy& copy : copies) lane->copy(copy);
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
  return segment.gpu(write.remote.gpus[0] - 1).device_index ==
         segment.gpu(change.remote.gpus[0] - 1).device_index;
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
  AreaAddress from;
  address_own(*write.lane, reinterpret_cast<uint64_t>(write.local.pieces[0].iov_base), write.local.gpus[0],
              from);
  const AreaAddress to = address_segment(write.carried);
  write.lane_first = write.lane->ticket();
  write.lane->copy({to, from, write.bytes, to.offset});
  write.lane_last = write.lane->ticket();
  write.lane->start();
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
  if (state != LaneState::kBusy) Process::get()->imports.end_use();
  return state;
}

}  // namespace verbena::softverbs
