// Asks the host's proxy for RDMA operations, through descriptors in the put queues (put_abi.h). By default, a
// block always uses the same queue of a context, so its signals take effect after its earlier puts to the
// same peer. Internal to symm_*.
//
// Every wait ends within the context's timeout. A call that gives up has not reserved any positions.
#ifndef VERBENA_DEVICE_SYMM_QUEUE_CUH
#define VERBENA_DEVICE_SYMM_QUEUE_CUH

#include "verbena/device/atomic.cuh"
#include "verbena/device/symm_team.cuh"

namespace verbena::device {

namespace detail {

inline constexpr uint32_t kLooksPerCheck = 64;  // polls between checks of the timeout; each poll reads over
                                                // PCIe

struct PutRequest {
  PutOperation operation;
  uint64_t operand, extent, place;  // as in PutDescriptor, without the turn (put_abi.h)
  bool tells = false;               // true to set the flag kPutReports
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

// Returns the world rank of a member.
VERBENA_DEVICE uint32_t get_world_rank(const SymmContext& context, int32_t peer) {
  return static_cast<uint32_t>(context.team_size <= kSymmInlineDeltas ? context.inline_world_ranks[peer]
                                                                      : context.more_world_ranks[peer]);
}

// Returns whether the slots of `count` positions, starting at position `next`, are free. Stale values are
// safe because positions only grow: if `consumed` is stale, the queue looks fuller than it is, and if `next`
// is stale, the compare-exchange fails.
VERBENA_DEVICE bool has_space(const SymmContext& context, uint64_t next, uint32_t count, uint64_t consumed) {
  return static_cast<int64_t>(next + count - consumed) <= int64_t{1} << context.queues.depth_shift;
}

// Reads the proxy's progress over PCIe, and caches the value in GPU memory for other threads. If two threads
// do this at the same time, the cached value may decrease for a moment, which only makes a thread poll again.
VERBENA_DEVICE uint64_t poll_for_space(const SymmContext& context, uint32_t queue) {
  const uint64_t consumed = load_acquire<Scope::kSystem>(&context.queues.progress[queue].consumed);
  store_release<Scope::kGpu>(&context.queues.cursors[queue].consumed_seen, consumed);
  return consumed;
}

// Reserves `count` consecutive positions whose slots are free. `*position` receives the first position.
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

// Publishes a descriptor. The caller must have executed a fence, which makes this store a release.
VERBENA_DEVICE void write_second_half(const SymmContext& context, PutDescriptor* slot, uint64_t position,
                                      uint32_t world_rank, const PutRequest& request) {
  const uint64_t turn = ((position >> context.queues.depth_shift) + 1) << kPutTurnShift;
  const Halves half{turn | request.place,
                    turn | (request.tells ? kPutReports : 0) |
                        uint64_t{static_cast<uint8_t>(request.operation)} << kPutOperationShift | world_rank};
  store<Order::kRelaxed, Scope::kSystem, Cache::kDefault, Space::kGlobal>(
      reinterpret_cast<Vector16*>(&slot->place), __builtin_bit_cast(Vector16, half));
}

// Enqueues `count` consecutive requests. One thread makes the call. Everything that this thread has observed
// at system scope is ordered before the requests.
// @param peer   a rank of the team
// @param waits  true to wait for free slots; if false, the call returns kTimedOut if the queue is full
// @param asked  receives the last request; may be null
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

// Delays the queue's next request for the peer until the requests for the same peer in all other queues are
// complete. Only requests that this thread has observed are included. One thread makes the call.
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

// Returns whether a request with the flag kPutReports is complete. The call is an acquire. If the reply of a
// later position has overwritten this reply, PutProgress::completed shows that the request is complete.
VERBENA_DEVICE bool is_complete(const SymmContext& context, const SymmRequest& asked) {
  return load_acquire<Scope::kSystem>(&find_reply(context, asked)->told) == asked.after ||
         load_acquire<Scope::kSystem>(&context.queues.progress[asked.queue].completed) >= asked.after;
}
template <typename Context>
VERBENA_DEVICE_FAR WaitResult await_request(const Context& context, const SymmRequest& asked) {
  if (asked.after == 0) return WaitResult::kReached;
  return wait_for(limit_wait(context), [&] { return is_complete(context, asked); });
}

// Requests an update of a word, and waits for the previous value. One thread makes the call. This thread owns
// the reply until it adds kPutReplyLeft to PutReply::told, even if the wait times out.
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

// Waits until all positions of the queue below `position` are complete.
VERBENA_DEVICE WaitResult await_completed(const SymmContext& context, uint32_t queue, uint64_t position) {
  uint64_t completed = 0;
  const WaitResult result = wait_until<Relation::kGreaterEqual, Scope::kSystem>(
      &context.queues.progress[queue].completed, position, limit_wait(context), &completed);
  if (result == WaitResult::kReached)
    store_release<Scope::kGpu>(&context.queues.cursors[queue].completed_seen, completed);
  return result;
}

// Waits until all earlier requests that this thread has observed, in all queues, are complete. One thread
// makes the call. Reads nothing over PCIe if nothing is in flight.
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

// Waits until the requests for one peer are complete. To do so, enqueues an empty put with a reply in each
// queue that has requests in flight, and waits for the replies. `place` is the offset of any word in the
// heap.
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
