// Barriers of a team. One group of threads on each rank waits for the groups of all other ranks. In
// symm_lsa_*, the group waits only for the groups of the ranks that loads and stores reach. After the
// barrier, all threads of these groups see everything that any of these threads did before the barrier, at
// system scope. A barrier of the whole team also completes earlier puts and signals by NICs.
//
// Each barrier has a number from 0 to kSymmBarriers - 1. Two groups of a rank that may wait at the same time
// must use barriers with different numbers, such as the block indices of the groups. A CUDA graph with
// barriers may be replayed, because the round counters are in GPU memory and are never reset.
//
// Every wait ends within the context's timeout. If a barrier returns a status other than kDone, the ranks are
// out of step, and the hosts must reset the team (verbena_team_reset).
#ifndef VERBENA_DEVICE_SYMM_BARRIER_CUH
#define VERBENA_DEVICE_SYMM_BARRIER_CUH

#include "verbena/device/atomic.cuh"
#include "verbena/device/group.cuh"
#include "verbena/device/symm_failure.cuh"
#include "verbena/device/symm_verbena.cuh"

namespace verbena::device {

namespace detail {

VERBENA_DEVICE uint64_t find_next_round(const SymmContext& context, uint32_t row) {
  return load_relaxed<Scope::kGpu>(context.rounds + row) + 1;
}

// Notifies the ranks that loads and stores reach. Returns the new round.
template <typename Group>
VERBENA_DEVICE uint64_t arrive(const SymmContext& context, uint32_t row, const Group& group) {
  group.sync();
  const uint64_t round = find_next_round(context, row);
  uint64_t* const mine = find_arrivals(context, row) + context.team_rank;
  const auto size = static_cast<uint32_t>(context.team_size);
  for (uint32_t peer = group.rank(); peer < size; peer += group.size()) {
    const int64_t delta_bytes = get_delta(context, static_cast<int32_t>(peer));
    if (delta_bytes != kSymmOutOfReach) store_release<Scope::kSystem>(shift(mine, delta_bytes), round);
  }
  return round;
}

// Returns true if ranks that reach each other by loads and stores must wait for each other twice per barrier.
// Two waits are needed if SymmContext::meets_twice is 1, or if the network orders an arrival only after puts
// to the same peer. In these cases the arrival words count two rounds per barrier, while the network counts
// one.
template <typename Context>
VERBENA_DEVICE bool meets_twice(const Context& context) {
  return context.has_remote != 0 &&
         (context.meets_twice != 0 || !NetworkTraits<Context>::arrives_after_puts(context));
}
template <typename Context>
VERBENA_DEVICE uint64_t count_barriers(const Context& context, uint64_t round) {
  return meets_twice(context) ? (round + 1) / 2 : round;
}

// Notifies the ranks that only the network reaches. If kCompletes and the network's kArrivesAfterPuts are
// true, the function first waits until all earlier operations of this rank are complete.
template <bool kCompletes, typename Context, typename Group>
VERBENA_DEVICE SymmStatus arrive_remote(const Context& context, uint32_t barrier, const Group& group) {
  using Network = SymmNetwork<Context>;
  group.sync();
  WaitResult mine = WaitResult::kReached;
  if (kCompletes && NetworkTraits<Context>::arrives_after_puts(context)) {
    if (group.elect()) mine = Network::complete(context);
    const SymmStatus status = conclude(context, group, mine, {SymmWait::kCompletion});
    if (status != SymmStatus::kDone) return status;
  }
  const uint64_t count = count_barriers(context, find_next_round(context, kSymmBarriers + barrier));
  Awaited awaited{SymmWait::kRequest};
  const auto size = static_cast<uint32_t>(context.team_size);
  for (uint32_t i = group.rank(); i < size && mine == WaitResult::kReached; i += group.size()) {
    awaited.peer = i;
    const auto peer = static_cast<int32_t>(i);
    if (get_delta(context, peer) == kSymmOutOfReach) mine = Network::arrive(context, peer, barrier, count);
  }
  return conclude(context, group, mine, awaited);
}

template <bool kCompletes, typename Context, typename Group>
VERBENA_DEVICE SymmStatus arrive_whole(const Context& context, uint32_t barrier, const Group& group,
                                       uint64_t* round) {
  if (barrier >= kSymmBarriers) return SymmStatus::kInvalid;
  if (context.has_remote != 0) {
    if (!SymmNetwork<Context>::is_there(context)) return SymmStatus::kUnreachable;
    const SymmStatus status = arrive_remote<kCompletes>(context, barrier, group);
    if (status != SymmStatus::kDone) return status;
  }
  *round = arrive(context, kSymmBarriers + barrier, group);
  return SymmStatus::kDone;
}

// Waits for the arrivals of all members. Calls `wait_remote(peer, limits)` for each peer that only the
// network reaches.
template <typename Context, typename Group, typename WaitFar>
VERBENA_DEVICE SymmStatus await(const Context& context, uint32_t row, uint64_t round, const Group& group,
                                const WaitFar& wait_remote) {
  const WaitLimits limits = limit_wait(context);
  const uint64_t* const arrivals = find_arrivals(context, row);
  const auto size = static_cast<uint32_t>(context.team_size);
  Awaited awaited = row < kSymmBarriers ? Awaited{SymmWait::kLsaBarrier, row}
                                        : Awaited{SymmWait::kBarrier, row - kSymmBarriers};
  awaited.begun_ns = begin_wait(context);
  WaitResult mine = WaitResult::kReached;
  for (uint32_t i = group.rank(); i < size && mine == WaitResult::kReached; i += group.size()) {
    awaited.peer = i;
    const auto peer = static_cast<int32_t>(i);
    mine = get_delta(context, peer) == kSymmOutOfReach
               ? wait_remote(peer, limits)
               : wait_until<Relation::kGreaterEqual, Scope::kSystem>(arrivals + i, round, limits);
  }
  const SymmStatus status = conclude(context, group, mine, awaited);
  // All threads have read the old round before conclude(). The group.sync() of the next arrive() makes the
  // new round visible to all threads.
  if (group.elect()) store_relaxed<Scope::kGpu>(context.rounds + row, round);
  return status;
}

template <typename Context, typename Group>
VERBENA_DEVICE SymmStatus await_reach(const Context& context, uint32_t row, uint64_t round,
                                      const Group& group) {
  return await(context, row, round, group, [](int32_t, const WaitLimits&) { return WaitResult::kReached; });
}

template <typename Context, typename Group>
VERBENA_DEVICE SymmStatus await_whole(const Context& context, uint32_t barrier, uint64_t round,
                                      const Group& group) {
  const uint32_t row = kSymmBarriers + barrier;
  const uint64_t count = count_barriers(context, round);
  const SymmStatus status = await(context, row, round, group, [&](int32_t peer, const WaitLimits& limits) {
    return wait_for(limits, [&] { return SymmNetwork<Context>::has_arrived(context, peer, barrier, count); });
  });
  if (status != SymmStatus::kDone || !meets_twice(context)) return status;
  return await_reach(context, row, arrive(context, row, group), group);
}

}  // namespace detail

// First half of symm_lsa_barrier(): notifies the other ranks without waiting.
template <typename Group>
VERBENA_DEVICE SymmStatus symm_lsa_barrier_arrive(const SymmContext& context, uint32_t barrier,
                                                  const Group& group) {
  if (barrier >= kSymmBarriers) return SymmStatus::kInvalid;
  detail::arrive(context, barrier, group);
  return SymmStatus::kDone;
}

// Second half of symm_lsa_barrier(): waits for the other ranks. Call it once for each first half.
template <typename Group>
[[nodiscard]] VERBENA_DEVICE SymmStatus symm_lsa_barrier_wait(const SymmContext& context, uint32_t barrier,
                                                              const Group& group) {
  if (barrier >= kSymmBarriers) return SymmStatus::kInvalid;
  return detail::await_reach(context, barrier, detail::find_next_round(context, barrier), group);
}

// Waits for all ranks that loads and stores reach. All threads of the group make the call.
template <typename Group = BlockGroup>
[[nodiscard]] VERBENA_DEVICE SymmStatus symm_lsa_barrier(const SymmContext& context, uint32_t barrier,
                                                         const Group& group = {}) {
  if (barrier >= kSymmBarriers) return SymmStatus::kInvalid;
  return detail::await_reach(context, barrier, detail::arrive(context, barrier, group), group);
}

// The two halves of symm_barrier(). The first half waits until earlier operations by NICs are complete.
template <typename Context, typename Group>
[[nodiscard]] VERBENA_DEVICE SymmStatus symm_barrier_arrive(const Context& context, uint32_t barrier,
                                                            const Group& group) {
  uint64_t round = 0;
  return detail::arrive_whole<true>(context, barrier, group, &round);
}

template <typename Context, typename Group>
[[nodiscard]] VERBENA_DEVICE SymmStatus symm_barrier_wait(const Context& context, uint32_t barrier,
                                                          const Group& group) {
  if (barrier >= kSymmBarriers) return SymmStatus::kInvalid;
  const uint64_t round = detail::find_next_round(context, kSymmBarriers + barrier);
  return detail::await_whole(context, barrier, round, group);
}

// Waits for the whole team. All threads of the group make the call.
template <typename Context, typename Group = BlockGroup>
[[nodiscard]] VERBENA_DEVICE SymmStatus symm_barrier(const Context& context, uint32_t barrier,
                                                     const Group& group = {}) {
  uint64_t round = 0;
  const SymmStatus status = detail::arrive_whole<true>(context, barrier, group, &round);
  return status == SymmStatus::kDone ? detail::await_whole(context, barrier, round, group) : status;
}

// Waits for the whole team like symm_barrier(), but does not complete operations by NICs. Afterwards, stores
// between ranks that reach each other are visible, but puts by NICs might not be visible yet.
template <typename Context, typename Group = BlockGroup>
[[nodiscard]] VERBENA_DEVICE SymmStatus symm_sync(const Context& context, uint32_t barrier,
                                                  const Group& group = {}) {
  uint64_t round = 0;
  const SymmStatus status = detail::arrive_whole<false>(context, barrier, group, &round);
  return status == SymmStatus::kDone ? detail::await_whole(context, barrier, round, group) : status;
}

}  // namespace verbena::device

#endif
