// The failure word of a team: a wait that times out sets it on this rank and its peers, so that the hosts can
// report it and no member waits for one that has given up. Internal to symm_*.
#ifndef VERBENA_DEVICE_SYMM_FAILURE_CUH
#define VERBENA_DEVICE_SYMM_FAILURE_CUH

#include "verbena/device/atomic.cuh"
#include "verbena/device/symm_network.cuh"
#include "verbena/device/symm_probe.cuh"

namespace verbena::device {

namespace detail {

// Which wait, for which member.
struct Awaited {
  SymmWait wait;
  uint32_t number = 0;          // of the barrier or signal
  uint32_t peer = kSymmNobody;  // a member
  uint64_t begun_ns = 0;        // of begin_wait(); 0: the wait is not recorded
};

VERBENA_DEVICE uint64_t pack_failure(const SymmContext& context, const Awaited& awaited) {
  return static_cast<uint64_t>(awaited.wait) | uint64_t{awaited.number} << kSymmFailureNumber |
         uint64_t{awaited.peer} << kSymmFailurePeer |
         static_cast<uint64_t>(context.team_rank) << kSymmFailureRank;
}

// Returns whether a wait of the team timed out on any member, or a call was invalid. The ranks are out of
// step then: data in slots may be of another call.
VERBENA_DEVICE bool has_failed(const uint64_t* failure) {
  return failure != nullptr && load_relaxed<Scope::kSystem>(failure) != 0;
}
VERBENA_DEVICE bool has_failed(const SymmContext& context) {
  return has_failed(context.failure);
}

// Called by each thread that has timed out; the first thread's word is kept. Members that only a NIC reaches
// are notified if that needs no wait: they have their own deadlines.
template <typename Context>
VERBENA_DEVICE_FAR void fail_team(const Context& context, const Awaited& awaited) {
  uint64_t* const word = context.failure;
  if (word == nullptr) return;
  const uint64_t bits = pack_failure(context, awaited);
  if (compare_exchange<Order::kRelaxed, Scope::kSystem>(word, 0, bits) != 0) return;
  for (int32_t peer = 0; peer < context.team_size; ++peer) {
    const int64_t delta_bytes = get_delta(context, peer);
    if (peer == context.team_rank) continue;
    if (delta_bytes != kSymmOutOfReach) {
      compare_exchange<Order::kRelaxed, Scope::kSystem>(shift(word, delta_bytes), 0, bits);
    } else if (SymmNetwork<Context>::is_there(context)) {
      SymmNetwork<Context>::notify(context, peer, word, bits);
    }
  }
}

// Combines the results of all threads of a group, as agree() does; a thread that has timed out records the
// failure.
template <typename Context, typename Group>
VERBENA_DEVICE SymmStatus conclude(const Context& context, const Group& group, WaitResult mine,
                                   const Awaited& awaited) {
  if (kHasFaults && awaited.begun_ns != 0 && group.rank() == 0) {
    if (take_fault(context, SymmFault::kLateWait)) mine = WaitResult::kTimedOut;
    if (context.abort_word != nullptr && take_fault(context, SymmFault::kForceAbort))
      mine = WaitResult::kAborted;
  }
  record_wait(context, group, awaited.number, awaited.peer, awaited.begun_ns, mine == WaitResult::kTimedOut);
  if (mine == WaitResult::kTimedOut) fail_team(context, awaited);
  return as_status(context, agree(group, mine));
}

// For the first call of a kernel: returns kTimedOut, to all threads of the group, once the team has failed.
template <typename Context, typename Group>
VERBENA_DEVICE SymmStatus begin_in_step(const Context& context, const Group& group) {
  return group.any(has_failed(context)) ? SymmStatus::kTimedOut : SymmStatus::kDone;
}

}  // namespace detail

}  // namespace verbena::device

#endif
