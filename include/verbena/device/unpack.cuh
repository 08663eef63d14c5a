// Unpacks received messages. The descriptors in a slot of the unpack queue (verbena/unpack_abi.h) refer to
// parts of bounce pages. A group of threads copies these parts to the message's destination.
//
// All threads of a group (group.cuh: a warp, several warps or a block) call each function with the same
// arguments. A kernel calls wait_message() and unpack_message() for each message. The plugin reuses the slot
// and the pages of a message after the application has called irecvConsumed for the message.
//
// Work is distributed over warps by bytes. The group loads a batch of descriptors into shared memory, splits
// each descriptor into pieces of 0.5 to 4 KiB, and numbers the pieces of the batch by a prefix sum. If there
// are W warps, warp w copies pieces w, w + W, and so on. So all warps have the same amount of work, whether a
// message consists of one page of 64 KiB or of a thousand pages of 16 bytes. The descriptors are in host
// memory. Each descriptor is read over PCIe only once, in a coalesced load, at the same time as the count.
#ifndef VERBENA_DEVICE_UNPACK_CUH
#define VERBENA_DEVICE_UNPACK_CUH

#include "verbena/device/piece_walk.cuh"
#include "verbena/device/wait.cuh"

namespace verbena::device {

// A copy method that uses registers. The method works on every architecture, and needs no shared memory
// except the UnpackScratch. Every copy method has two functions. copy() copies this thread's share of a
// batch. When copy() returns, copies may still be in flight, but none of them reads the UnpackScratch.
// drain() waits for the copies in flight.
struct CopyThroughRegisters {
  static constexpr int kRows = 4;
  static constexpr int kPieceShift = 11;
  static_assert(1 << kPieceShift == WarpPiece<kRows>::kMaxBodyBytes,
                "verbena: the body of a piece must fill the rows");

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
  kBadCount,  // the count exceeds kUnpackMaxDescriptors; nothing was written
};

namespace detail {

// The first loads of a slot: every thread loads the count, and thread i loads descriptor i. These loads cross
// PCIe at the same time. Descriptors at index `count` and above are ignored.
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

// Unpacks one message. Calls `load_next` once, before the copies of the last batch, so that the loads of
// `load_next` overlap with these copies.
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
    group.sync();  // now all threads have read the scratch
  }
}

}  // namespace detail

// Unpacks the messages of `messages` consecutive slots; slot 0 follows slot 15. A single call is faster than
// one call per message, because it loads the descriptors of the next message while it copies the current
// message. For a message with a count of 0, the call writes nothing. All threads of the group must have
// acquired all messages before the call. For example, one thread acquires them by loads at system scope
// (wait_message, or NCCL's step), and then the group syncs. When the call returns, every thread of the group
// can read all bytes.
// @param first_slot  0 to 15
// @param place  place(i) returns the destination (void*) of message i; all threads call it
// @return kBadCount if a count exceeds kUnpackMaxDescriptors
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

// Unpacks one message, for callers that do not know the message's number of descriptors, such as NCCL's
// kernels.
template <typename Group, int kBatch, typename Copy>
VERBENA_DEVICE UnpackResult unpack_message(const Group& group, UnpackScratch<kBatch>& scratch, Copy& copy,
                                           const NetUnpackMeta* meta, uint32_t slot, const void* bounce,
                                           void* data) {
  return unpack_messages(group, scratch, copy, meta, slot, 1, bounce, [data](uint32_t) { return data; });
}

// Unpacks one message, for callers that have the message's count from wait_message(). This overload is faster
// than the overload without a count: it reads only the descriptors of the message, and it copies short
// messages without the UnpackScratch and its barriers.
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

// Unpacks one message without shared memory and barriers. Each warp copies whole batches of descriptors. If
// the message has at most 32 descriptors, the warps share the pieces of these descriptors instead. The caller
// must sync the group before a thread reads bytes that another thread has written.
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
  uint64_t count;  // number of descriptors of the message, if the result is kReached
};

// Waits until the message in a slot has arrived. Between two calls of wait_message(), the group must call
// sync() or unpack a message.
// @return kReached and the count, or the reason why the wait ended early
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
