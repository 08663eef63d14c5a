// How a thread requests RDMA from the host's proxy: descriptors in the put queues (put_abi.h). A block always
// uses the same queue of a context unless it names another, so that its requests to one peer take effect
// there in order. Internal to symm_*.
//
// Every wait has the context's limits, and a producer that gives up has reserved nothing.
#ifndef VERBENA_DEVICE_SYMM_QUEUE_CUH
#define VERBENA_DEVICE_SYMM_QUEUE_CUH

#include "verbena/device/atomic.cuh"
#include "verbena/device/symm_team.cuh"

namespace verbena::device {

namespace detail {

inline constexpr uint32_t kLooksPerCheck = 64;  // each poll is a read over PCIe

struct PutRequest {
  PutOperation operation;
  uint64_t operand, extent, place;  // as in PutDescriptor, without the turn
  bool tells = false;               // kPutReports
};

VERBENA_DEVICE bool has_queues(const SymmContext& context) {
  return context.queues.count != 0;
}

VERBENA_DEVICE uint32_t choose_queue(const SymmContext& context, SymmQueue queue) {
  const uint32_t number =
      queue.number == SymmQueue::kOfBlock ? context.first_queue + block_index() : queue.number;
  return number % context.queues.count;
}

// Returns the offset of an address in this rank's heap.
VERBENA_DEVICE uint64_t find_offset(const SymmContext& context, const void* address) {
  return reinterpret_cast<uint64_t>(address) - context.heap_begin;
}

// Returns a member's rank in the world.
VERBENA_DEVICE uint32_t get_world_rank(const SymmContext& context, int32_t peer) {
  return static_cast<uint32_t>(context.team_size <= kSymmInlineDeltas ? context.inline_world_ranks[peer]
                                                                      : context.more_world_ranks[peer]);
}

// Positions only grow: a stale one makes the difference smaller than it is, or the exchange fail.
VERBENA_DEVICE bool has_space(const SymmContext& context, uint64_t next, uint32_t count, uint64_t consumed) {
  return static_cast<int64_t>(next + count - consumed) <= int64_t{1} << context.queues.depth_shift;
}

// Reads the proxy's progress, over PCIe, and keeps it in the GPU's memory for other threads. That copy may
// decrease for a moment, which makes a thread poll again.
VERBENA_DEVICE uint64_t poll_for_space(const SymmContext& context, uint32_t queue) {
  const uint64_t consumed = load_acquire<Scope::kSystem>(&context.queues.progress[queue].consumed);
  store_release<Scope::kGpu>(&context.queues.cursors[queue].consumed_seen, consumed);
  return consumed;
}

// Reserves `count` consecutive positions from *position on, whose slots are free.
VERBENA_DEVICE WaitResult reserve(const SymmContext& context, uint32_t queue, uint32_t count, bool waits,
                                  uint64_t* position) {
  PutCursors& cursors = context.queues.cursors[queue];
  uint64_t next = load_relaxed<Scope::kGpu>(&cursors.reserved);
  uint64_t consumed = load_acquire<Scope::kGpu>(&cursors.consumed_seen);
  if (!has_space(context, next, count, consumed)) consumed = poll_for_space(context, queue);
  WaitLimits limits{};
  PauseLongerAndLonger<> back_off;
  for (uint32_t looks = 0;;) {
    if (has_space(context, next, count, consumed)) {
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
    consumed = poll_for_space(context, queue);
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

// Called after a fence: with it this store is a release.
VERBENA_DEVICE void write_second_half(const SymmContext& context, PutDescriptor* slot, uint64_t position,
                                      uint32_t world_rank, const PutRequest& request) {
  const uint64_t turn = ((position >> context.queues.depth_shift) + 1) << kPutTurnShift;
  const Halves half{turn | request.place,
                    turn | (request.tells ? kPutReports : 0) |
                        uint64_t{static_cast<uint8_t>(request.operation)} << kPutOperationShift | world_rank};
  store<Order::kRelaxed, Scope::kSystem, Cache::kDefault, Space::kGlobal>(
      reinterpret_cast<Vector16*>(&slot->place), __builtin_bit_cast(Vector16, half));
}

// Enqueues `count` requests, by one thread, consecutively. What this thread has observed, at system scope,
// precedes them. Descriptors name ranks of the world; `peer` is a member.
// @param waits  false: returns kTimedOut if the queue has no space now
// @param asked  receives the last request; may be NULL
template <typename Context>
VERBENA_DEVICE_FAR WaitResult enqueue(const Context& context, SymmQueue by, int32_t peer,
                                      const PutRequest* requests, uint32_t count, bool waits,
                                      SymmRequest* asked) {
  const uint32_t queue = choose_queue(context, by), world_rank = get_world_rank(context, peer);
  uint64_t position = 0;
  const WaitResult result = reserve(context, queue, count, waits, &position);
  if (result != WaitResult::kReached) return result;
  for (uint32_t i = 0; i < count; ++i) write_first_half(find_slot(context, queue, position + i), requests[i]);
  fence<Order::kAcquireRelease, Scope::kSystem>();
  for (uint32_t i = 0; i < count; ++i)
    write_second_half(context, find_slot(context, queue, position + i), position + i, world_rank,
                      requests[i]);
  if (asked != nullptr) *asked = {position + count, queue};
  return WaitResult::kReached;
}
template <uint32_t kCount>
VERBENA_DEVICE WaitResult enqueue(const SymmContext& context, SymmQueue by, int32_t peer,
                                  const PutRequest (&requests)[kCount], SymmRequest* asked = nullptr) {
  return enqueue(context, by, peer, requests, kCount, true, asked);
}

// Called by one thread: the next request in this queue for the peer starts after all requests of other queues
// for that peer are complete, as far as this thread has observed them.
template <typename Context>
VERBENA_DEVICE_FAR WaitResult follow_queues(const Context& context, int32_t peer, SymmQueue by) {
  const uint32_t mine = choose_queue(context, by);
  WaitResult result = WaitResult::kReached;
  for (uint32_t queue = 0; queue < context.queues.count && result == WaitResult::kReached; ++queue) {
    const PutCursors& cursors = context.queues.cursors[queue];
    const uint64_t reserved = load_relaxed<Scope::kGpu>(&cursors.reserved);
    if (queue == mine || load_relaxed<Scope::kGpu>(&cursors.completed_seen) >= reserved) continue;
    const PutRequest requests[] = {{PutOperation::kAwaitQueue, reserved, queue, 0}};
    result = enqueue(context, SymmQueue{mine}, peer, requests);
  }
  return result;
}

VERBENA_DEVICE PutReply* find_reply(const SymmContext& context, const SymmRequest& asked) {
  const uint64_t depth = uint64_t{1} << context.queues.depth_shift;
  return context.queues.replies + asked.queue * depth + ((asked.after - 1) & (depth - 1));
}

// Returns whether a request that is reported on its own is complete; acquires. A later position's reply may
// have overwritten its own: then the completed prefix shows it.
VERBENA_DEVICE bool is_complete(const SymmContext& context, const SymmRequest& asked) {
  return load_acquire<Scope::kSystem>(&find_reply(context, asked)->told) == asked.after ||
         load_acquire<Scope::kSystem>(&context.queues.progress[asked.queue].completed) >= asked.after;
}
template <typename Context>
VERBENA_DEVICE_FAR WaitResult await_request(const Context& context, const SymmRequest& asked) {
  if (asked.after == 0) return WaitResult::kReached;
  return wait_for(limit_wait(context), [&] { return is_complete(context, asked); });
}

// Requests an update, by one thread, and waits for the value before. The reply belongs to the thread until it
// leaves it, with or without the value.
template <typename Context>
VERBENA_DEVICE_FAR WaitResult update_remote(const Context& context, SymmQueue by, int32_t peer,
                                            const PutRequest& request, uint64_t* before) {
  SymmRequest asked;
  const WaitResult enqueued = enqueue(context, by, peer, &request, 1, true, &asked);
  if (enqueued != WaitResult::kReached) return enqueued;
  PutReply* const reply = find_reply(context, asked);
  const WaitResult result =
      wait_until<Relation::kEqual, Scope::kSystem>(&reply->told, asked.after, limit_wait(context));
  if (result == WaitResult::kReached) *before = load<Order::kWeak, Scope::kThreads>(&reply->value);
  store_release<Scope::kSystem>(&reply->told, asked.after | kPutReplyLeft);
  return result;
}

// Waits until all positions of the queue before this one are complete.
VERBENA_DEVICE WaitResult await_completed(const SymmContext& context, uint32_t queue, uint64_t position) {
  uint64_t completed = 0;
  const WaitResult result = wait_until<Relation::kGreaterEqual, Scope::kSystem>(
      &context.queues.progress[queue].completed, position, limit_wait(context), &completed);
  if (result == WaitResult::kReached)
    store_release<Scope::kGpu>(&context.queues.cursors[queue].completed_seen, completed);
  return result;
}

// Called by one thread: waits until all earlier requests in any queue, as far as this thread has observed
// them, are complete. If nothing is in flight, nothing is read over PCIe.
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

// The same for the requests to one peer: each queue with something in flight is asked for a reply after it.
// `place` is the offset of any word of the heap.
template <typename Context>
VERBENA_DEVICE_FAR WaitResult complete_at(const Context& context, int32_t peer, uint64_t place) {
  SymmRequest asked[kPutMaxQueues];
  uint32_t count = 0;
  for (uint32_t queue = 0; queue < context.queues.count; ++queue) {
    const PutCursors& cursors = context.queues.cursors[queue];
    const uint64_t reserved = load_relaxed<Scope::kGpu>(&cursors.reserved);
    if (load_acquire<Scope::kGpu>(&cursors.completed_seen) >= reserved) continue;
    const PutRequest request{PutOperation::kPut, place, 0, place, true};
    const WaitResult result = enqueue(context, SymmQueue{queue}, peer, &request, 1, true, &asked[count++]);
    if (result != WaitResult::kReached) return result;
  }
  for (uint32_t i = 0; i < count; ++i) {
    const WaitResult result = await_request(context, asked[i]);
    if (result != WaitResult::kReached) return result;
  }
  return WaitResult::kReached;
}

}  // namespace detail

}  // namespace verbena::device

#endif
