// Placing a received message: the descriptors of one slot of the unpack queue (verbena/unpack_abi.h) name
// pieces of bounce pages, a group of warps copies them to where they belong.
//
// The work is split by bytes. The group loads a batch of descriptors into shared memory, cuts each into
// pieces of a few rows, numbers the pieces of the whole batch by a prefix sum, and warp w of W takes pieces
// w, w + W, ... So warps are equally busy whether the message is one page of 64 KiB or a thousand of 16
// bytes.
//
// Everything here is called by all threads of a group (group.cuh: a warp, warps, a block) together.
// Descriptors come from the host over PCIe: they are read once, as a coalesced load, at the same time as
// their count.
#ifndef VERBENA_DEVICE_UNPACK_CUH
#define VERBENA_DEVICE_UNPACK_CUH

#include "verbena/device/piece_walk.cuh"
#include "verbena/device/wait.cuh"

namespace verbena::device {

// A way of copying has copy(), which takes its share of a batch and may leave copies under way that need the
// scratch no more, and drain(), which ends them.
//
// Through registers: any architecture, no memory but the scratch.
struct CopyThroughRegisters {
  static constexpr int kRows = 4;
  static constexpr int kPieceShift = 11;
  static_assert(1 << kPieceShift == WarpPiece<kRows>::kMaxBodyBytes, "verbena: a piece fills the registers");

  template <typename Group, int kBatch>
  VERBENA_DEVICE void copy(const Group& group, const UnpackScratch<kBatch>& scratch, detail::Batch batch,
                           const char* bounce, char* data) {
    detail::PieceWalk<kBatch> walk(group, scratch, batch, bounce, data);
    detail::copy_walk<kRows>(walk);
  }

  VERBENA_DEVICE void drain() {}
};

enum class UnpackResult : uint8_t {
  kDone,
  kBadCount,  // the slot says more descriptors than it can hold: nothing was written
};

namespace detail {

// What a group reads of a slot before it can begin: thread i has the i-th descriptor. Count and descriptors
// cross PCIe at the same time; what lies behind the count is not used.
struct SlotHead {
  const LoadMeta* list;
  uint64_t count;
  LoadMeta mine;

  template <int kBatch, typename Group>
  VERBENA_DEVICE static SlotHead load(const Group& group, const NetUnpackMeta* meta, uint32_t slot) {
    SlotHead head{meta->mem[slot], 0, {}};
    if (group.rank() < get_capacity<kBatch>(group)) head.mine = load_queue(head.list + group.rank());
    head.count = load_queue(meta->cnt + slot);
    return head;
  }
};

// One message; `load_next` is called once, early in the last batch, so that what it loads arrives during the
// copy.
template <typename Group, int kBatch, typename Copy, typename LoadNext>
VERBENA_DEVICE void unpack_list(const Group& group, UnpackScratch<kBatch>& scratch, Copy& copy,
                                const SlotHead& head, const char* bounce, char* data, LoadNext&& load_next) {
  const uint32_t capacity = get_capacity<kBatch>(group);
  const auto count = static_cast<uint32_t>(head.count);
  LoadMeta mine = head.mine;
  for (uint32_t base = 0; base < count; base += capacity) {
    const uint32_t left = count - base;
    const Batch batch =
        stage_batch<Copy::kPieceShift>(group, scratch, mine, left < capacity ? left : capacity, data);
    const uint32_t next = base + capacity + group.rank();
    if (left <= capacity) {
      load_next();
    } else if (group.rank() < capacity && next < count) {
      mine = load_queue(head.list + next);
    }
    copy.copy(group, scratch, batch, bounce, data);
    group.sync();  // the scratch has been read
  }
}

}  // namespace detail

// Places the messages of `messages` slots, from first_slot (0 to 15) on and round, where `place(i)` says for
// the i-th (void*; all threads call it). The caller's threads have acquired all of them: one thread by loads
// at system scope (wait_message, or NCCL's step), the others by a barrier behind it. On return every byte is
// there for every thread of the group. The plugin uses slots and pages again only when it is told
// (irecvConsumed). A count of 0 writes nothing. Several messages at once cost less: the copies of one cover
// the loads of the next one's descriptors.
template <typename Group, int kBatch, typename Copy, typename Place>
VERBENA_DEVICE UnpackResult unpack_messages(const Group& group, UnpackScratch<kBatch>& scratch, Copy& copy,
                                            const NetUnpackMeta* meta, uint32_t first_slot, uint32_t messages,
                                            const void* bounce, Place&& place) {
  UnpackResult result = UnpackResult::kDone;
  if (messages == 0) return result;
  auto head = detail::SlotHead::load<kBatch>(group, meta, first_slot);
  for (uint32_t message = 0; message < messages; ++message) {
    const uint32_t next_slot = (first_slot + message + 1) % kUnpackQueueDepthSlots;
    detail::SlotHead next{};
    const auto load_next = [&] {
      if (message + 1 < messages) next = detail::SlotHead::load<kBatch>(group, meta, next_slot);
    };
    if (head.count > kUnpackMaxDescriptors) result = UnpackResult::kBadCount;
    if (head.count == 0 || head.count > kUnpackMaxDescriptors) {
      load_next();
    } else {
      detail::unpack_list(group, scratch, copy, head, static_cast<const char*>(bounce),
                          static_cast<char*>(place(message)), load_next);
    }
    head = next;
  }
  copy.drain();
  group.sync();
  return result;
}

// One message whose count the caller does not know, as NCCL does not.
template <typename Group, int kBatch, typename Copy>
VERBENA_DEVICE UnpackResult unpack_message(const Group& group, UnpackScratch<kBatch>& scratch, Copy& copy,
                                           const NetUnpackMeta* meta, uint32_t slot, const void* bounce,
                                           void* data) {
  return unpack_messages(group, scratch, copy, meta, slot, 1, bounce, [data](uint32_t) { return data; });
}

// One message of `count` descriptors: what wait_message said. Sooner, as no more is read than needed, and a
// short message is placed without the scratch and its barriers.
template <typename Group, int kBatch, typename Copy>
VERBENA_DEVICE UnpackResult unpack_message(const Group& group, UnpackScratch<kBatch>& scratch, Copy& copy,
                                           const NetUnpackMeta* meta, uint32_t slot, uint64_t count,
                                           const void* bounce, void* data) {
  const auto* const from = static_cast<const char*>(bounce);
  auto* const to = static_cast<char*>(data);
  if (count > kUnpackMaxDescriptors) return UnpackResult::kBadCount;
  if (count <= kWarpLanes) {
    const auto lane_count = static_cast<uint32_t>(count);
    detail::LaneWalk<> walk(group, meta->mem[slot], lane_count, from, to);
    if (walk.is_short(group)) {
      detail::copy_rows(walk);
      group.sync();
      return UnpackResult::kDone;
    }
  }
  detail::SlotHead head{meta->mem[slot], count, {}};
  if (group.rank() < detail::get_capacity<kBatch>(group) && group.rank() < count)
    head.mine = detail::load_queue(head.list + group.rank());
  detail::unpack_list(group, scratch, copy, head, from, to, [] {});
  copy.drain();
  group.sync();
  return UnpackResult::kDone;
}

// The same message without shared memory and barriers, for groups that have none to give: warps take whole
// batches of descriptors, and share the pieces of a message of few. The caller meets the group's threads
// before one reads what another placed.
template <typename Group>
VERBENA_DEVICE UnpackResult unpack_by_warps(const Group& group, const NetUnpackMeta* meta, uint32_t slot,
                                            const void* bounce, void* data) {
  using Copy = CopyThroughRegisters;
  const uint64_t said = detail::load_queue(meta->cnt + slot);
  if (said > kUnpackMaxDescriptors) return UnpackResult::kBadCount;
  const auto* const from = static_cast<const char*>(bounce);
  auto* const to = static_cast<char*>(data);
  const auto count = static_cast<uint32_t>(said);
  if (count <= kWarpLanes) {
    detail::LaneWalk<> rows(group, meta->mem[slot], count, from, to);
    if (rows.is_short(group)) {
      detail::copy_rows(rows);
      return UnpackResult::kDone;
    }
    detail::LaneWalk<Copy::kPieceShift> pieces(group, meta->mem[slot], count, from, to);
    detail::copy_walk<Copy::kRows>(pieces);
    return UnpackResult::kDone;
  }
  const uint32_t warps = group.size() / kWarpLanes, share = (count + warps - 1) / warps;
  const uint32_t batch = share < kWarpLanes ? share : kWarpLanes;
  for (uint32_t base = group.rank() / kWarpLanes * batch; base < count; base += warps * batch) {
    const uint32_t left = count - base;
    detail::LaneWalk<Copy::kPieceShift> pieces(WarpGroup{}, meta->mem[slot] + base,
                                               left < batch ? left : batch, from, to);
    detail::copy_walk<Copy::kRows>(pieces);
  }
  return UnpackResult::kDone;
}

struct MessageWait {
  WaitResult result;
  uint64_t count;  // the message's descriptors, if the result is kReached
};

// The group waits for the slot's message. Between two of these the group unpacks, or syncs.
template <typename BackOff = SpinWithoutPause, uint32_t kSpinsPerCheck = kDefaultSpinsPerCheck,
          typename Group, int kBatch>
[[nodiscard]] VERBENA_DEVICE MessageWait wait_message(const Group& group, UnpackScratch<kBatch>& scratch,
                                                      const NetUnpackMeta* meta, uint32_t slot,
                                                      const WaitLimits& limits) {
  WaitResult mine = WaitResult::kReached;
  if (group.elect()) {
    mine = wait_until<Relation::kNotEqual, Scope::kSystem, BackOff, kSpinsPerCheck>(meta->cnt + slot, 0,
                                                                                    limits, &scratch.count);
  }
  const WaitResult result = agree(group, mine);
  return {result, scratch.count};
}

}  // namespace verbena::device

#endif
