// Unpacks received messages: the descriptors in a slot of the unpack queue (verbena/unpack_abi.h) name pieces
// of bounce pages, and a group of threads copies these pieces to the message's destination.
//
// All functions are called by all threads of a group (group.cuh: a warp, several warps, a block) together,
// with the same arguments. A kernel alternates wait_message() and unpack_message(), and reports what it has
// consumed to the plugin (irecvConsumed) before slots and pages are reused.
//
// The work is divided by bytes. The group loads a batch of descriptors into shared memory, splits each into
// pieces of a few rows and numbers the pieces of the batch by a prefix sum; warp w of W takes the pieces w, w
// + W, ... So all warps are equally busy, whether a message is one page of 64 KiB or a thousand of 16 bytes.
// Descriptors come from the host over PCIe: each is read once, in a coalesced load, at the same time as their
// count.
#ifndef VERBENA_DEVICE_UNPACK_CUH
#define VERBENA_DEVICE_UNPACK_CUH

#include "verbena/device/piece_walk.cuh"
#include "verbena/device/wait.cuh"

namespace verbena::device {

// Copies through registers: works on every architecture, and needs no memory but the scratch. A copy method
// has two functions: copy() takes its share of a batch and may leave copies in flight that no longer need the
// scratch; drain() completes them.
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
  kBadCount,  // the count exceeds what a slot can hold: nothing was written
};

namespace detail {

// What a group reads of a slot first: thread i has the i-th descriptor. The count and the descriptors cross
// PCIe at the same time; descriptors after the count are ignored.
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

// Unpacks one message. Calls `load_next` once, early in the last batch, so that what it loads arrives during
// the copy.
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

// Unpacks the messages of `messages` consecutive slots; slot 0 follows slot 15. Several messages in one call
// cost less than one call each: the descriptors of the next message are loaded during the copies of one. A
// count of 0 writes nothing. Before the call the caller's threads have acquired all messages: one thread by
// loads at system scope (wait_message, or NCCL's step), the others by a barrier after it. On return every
// thread of the group can read all bytes.
// @param first_slot  0 to 15
// @param place  place(i) returns the destination (void*) of the i-th message; all threads call it
// @return kBadCount if a count exceeds what a slot can hold
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

// Unpacks one message whose count the caller does not know, as NCCL's kernels do not.
template <typename Group, int kBatch, typename Copy>
VERBENA_DEVICE UnpackResult unpack_message(const Group& group, UnpackScratch<kBatch>& scratch, Copy& copy,
                                           const NetUnpackMeta* meta, uint32_t slot, const void* bounce,
                                           void* data) {
  return unpack_messages(group, scratch, copy, meta, slot, 1, bounce, [data](uint32_t) { return data; });
}

// Unpacks one message of `count` descriptors, as wait_message() returned. Faster than the form without a
// count: it reads no more than needed, and a short message needs neither the scratch nor its barriers.
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

// Unpacks the same message without shared memory and barriers: warps take whole batches of descriptors, and
// divide the pieces of a message of few descriptors. The caller synchronises the group's threads before one
// reads what another has written.
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
  uint64_t count;  // descriptors of the message, if the result is kReached
};

// Waits, as a group, for the message in a slot. The group calls sync() or unpacks between two calls.
// @return kReached and the count; or why the wait ended
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
