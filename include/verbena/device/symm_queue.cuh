// How a thread asks the host's proxy for RDMA: descriptors in the put queues (put_abi.h). A block always uses
// the same queue of a context, so that what it asks of one peer takes effect there in order. Internal to
// symm_*.
//
// Every wait has the context's limits, and a producer that gives up has reserved nothing.
#ifndef VERBENA_DEVICE_SYMM_QUEUE_CUH
#define VERBENA_DEVICE_SYMM_QUEUE_CUH

#include "verbena/device/atomic.cuh"
#include "verbena/device/symm_team.cuh"

namespace verbena::device {

namespace detail {

inline constexpr uint32_t kLooksPerCheck = 64;  // each look is a read over PCIe

struct PutRequest {
  PutOperation operation;
  uint64_t operand, extent, place;  // as PutDescriptor has them; no turn
};

VERBENA_DEVICE bool has_queues(const SymmContext& context) {
  return context.queues.count != 0;
}

VERBENA_DEVICE uint32_t choose_queue(const SymmContext& context) {
  return (context.first_queue + block_index()) % context.queues.count;
}

// Of an address in our heap.
VERBENA_DEVICE uint64_t find_offset(const SymmContext& context, const void* address) {
  return reinterpret_cast<uint64_t>(address) - context.heap_begin;
}

// Of a member.
VERBENA_DEVICE uint32_t get_world_rank(const SymmContext& context, int32_t peer) {
  return static_cast<uint32_t>(context.team_size <= kSymmInlineDeltas ? context.inline_world_ranks[peer]
                                                                      : context.more_world_ranks[peer]);
}

// Positions only grow: a stale one makes the difference smaller than it is, or the exchange fail.
VERBENA_DEVICE bool has_room(const SymmContext& context, uint64_t next, uint32_t count, uint64_t consumed) {
  return static_cast<int64_t>(next + count - consumed) <= int64_t{1} << context.queues.depth_shift;
}

// How far the proxy is, over PCIe; kept in the GPU's memory for the others. It may go back there for a
// moment, which makes somebody look again.
VERBENA_DEVICE uint64_t look_for_room(const SymmContext& context, uint32_t queue) {
  const uint64_t consumed = load_acquire<Scope::kSystem>(&context.queues.progress[queue].consumed);
  store_release<Scope::kGpu>(&context.queues.cursors[queue].consumed_seen, consumed);
  return consumed;
}

// `count` positions next to each other, from *position on; their slots are free.
VERBENA_DEVICE WaitResult reserve(const SymmContext& context, uint32_t queue, uint32_t count, bool waits,
                                  uint64_t* position) {
  PutCursors& cursors = context.queues.cursors[queue];
  uint64_t next = load_relaxed<Scope::kGpu>(&cursors.reserved);
  uint64_t consumed = load_acquire<Scope::kGpu>(&cursors.consumed_seen);
  if (!has_room(context, next, count, consumed)) consumed = look_for_room(context, queue);
  WaitLimits limits{};
  PauseLongerAndLonger<> back_off;
  for (uint32_t looks = 0;;) {
    if (has_room(context, next, count, consumed)) {
      const uint64_t before =
          compare_exchange<Order::kRelaxed, Scope::kGpu>(&cursors.reserved, next, next + count);
      if (before == next) break;
      next = before;
      continue;
    }
    if (!waits) return WaitResult::kTimedOut;
    if (looks == 0) limits = limit_wait(context);
    if (++looks % kLooksPerCheck == 0) {
      const WaitResult end = limits.check();
      if (end != WaitResult::kReached) return end;
    }
    back_off.pause();
    next = load_relaxed<Scope::kGpu>(&cursors.reserved);
    consumed = look_for_room(context, queue);
  }
  *position = next;
  return WaitResult::kReached;
}

VERBENA_DEVICE PutDescriptor* find_slot(const SymmContext& context, uint32_t queue, uint64_t position) {
  const uint64_t depth = uint64_t{1} << context.queues.depth_shift;
  return context.queues.ring + queue * depth + (position & (depth - 1));
}

VERBENA_DEVICE void write_first_half(PutDescriptor* slot, const PutRequest& request) {
  const Halves half{request.operand, request.extent};
  store<Order::kWeak, Scope::kThreads, Cache::kDefault, Space::kGlobal>(
      reinterpret_cast<Vector16*>(&slot->operand), __builtin_bit_cast(Vector16, half));
}

// Behind a fence: with it this store is a release.
VERBENA_DEVICE void write_second_half(const SymmContext& context, PutDescriptor* slot, uint64_t position,
                                      uint32_t world_rank, const PutRequest& request) {
  const uint64_t turn = ((position >> context.queues.depth_shift) + 1) << kPutTurnShift;
  const Halves half{
      turn | request.place,
      turn | uint64_t{static_cast<uint8_t>(request.operation)} << kPutOperationShift | world_rank};
  store<Order::kRelaxed, Scope::kSystem, Cache::kDefault, Space::kGlobal>(
      reinterpret_cast<Vector16*>(&slot->place), __builtin_bit_cast(Vector16, half));
}

// By one thread: `count` requests that no other one's come between. What this thread knows of, at system
// scope, is before them. Descriptors name the world's ranks; `peer` is a member. Without a wait kTimedOut
// where there is no room now. *behind, if not null, is the position that quiet waits for.
template <typename Context>
VERBENA_DEVICE_FAR WaitResult enqueue(const Context& context, int32_t peer, const PutRequest* requests,
                                      uint32_t count, bool waits, uint64_t* behind) {
  const uint32_t queue = choose_queue(context), world_rank = get_world_rank(context, peer);
  uint64_t position = 0;
  const WaitResult result = reserve(context, queue, count, waits, &position);
  if (result != WaitResult::kReached) return result;
  for (uint32_t i = 0; i < count; ++i) write_first_half(find_slot(context, queue, position + i), requests[i]);
  fence<Order::kAcquireRelease, Scope::kSystem>();
  for (uint32_t i = 0; i < count; ++i)
    write_second_half(context, find_slot(context, queue, position + i), position + i, world_rank,
                      requests[i]);
  if (behind != nullptr) *behind = position + count;
  return WaitResult::kReached;
}
template <uint32_t kCount>
VERBENA_DEVICE WaitResult enqueue(const SymmContext& context, int32_t peer,
                                  const PutRequest (&requests)[kCount], uint64_t* behind = nullptr) {
  return enqueue(context, peer, requests, kCount, true, behind);
}

// By one thread: what this queue is asked for next begins when all is complete that was asked for in the
// others, as far as this thread knows of it.
template <typename Context>
VERBENA_DEVICE_FAR WaitResult follow_queues(const Context& context, int32_t peer) {
  const uint32_t mine = choose_queue(context);
  WaitResult result = WaitResult::kReached;
  for (uint32_t queue = 0; queue < context.queues.count && result == WaitResult::kReached; ++queue) {
    const PutCursors& cursors = context.queues.cursors[queue];
    const uint64_t reserved = load_relaxed<Scope::kGpu>(&cursors.reserved);
    if (queue == mine || load_relaxed<Scope::kGpu>(&cursors.completed_seen) >= reserved) continue;
    const PutRequest requests[] = {{PutOperation::kAwaitQueue, reserved, queue, 0}};
    result = enqueue(context, peer, requests);
  }
  return result;
}

// Until all positions of the queue before this one are complete.
VERBENA_DEVICE WaitResult await_completed(const SymmContext& context, uint32_t queue, uint64_t position) {
  uint64_t completed = 0;
  const WaitResult result = wait_until<Relation::kGreaterEqual, Scope::kSystem>(
      &context.queues.progress[queue].completed, position, limit_wait(context), &completed);
  if (result == WaitResult::kReached)
    store_release<Scope::kGpu>(&context.queues.cursors[queue].completed_seen, completed);
  return result;
}

// By one thread: all that was asked for in any queue before, as far as this thread knows of it, is complete.
// Where nothing is under way nothing is read over PCIe.
VERBENA_DEVICE WaitResult complete_all(const SymmContext& context) {
  WaitResult result = WaitResult::kReached;
  for (uint32_t queue = 0; queue < context.queues.count && result == WaitResult::kReached; ++queue) {
    const PutCursors& cursors = context.queues.cursors[queue];
    const uint64_t reserved = load_relaxed<Scope::kGpu>(&cursors.reserved);
    if (load_acquire<Scope::kGpu>(&cursors.completed_seen) < reserved)
      result = await_completed(context, queue, reserved);
  }
  return result;
}

}  // namespace detail

}  // namespace verbena::device

#endif
