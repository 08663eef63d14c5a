// The failure word of a team. A wait that times out sets the failure word on this rank and on its peers. The
// hosts can then report the timeout, and members do not wait for a rank whose wait has already timed out.
// Internal to symm_*.
#ifndef VERBENA_DEVICE_SYMM_FAILURE_CUH
#define VERBENA_DEVICE_SYMM_FAILURE_CUH

#include "verbena/device/atomic.cuh"
#include "verbena/device/symm_network.cuh"
#include "verbena/device/symm_probe.cuh"

namespace verbena::device {

namespace detail {

// Describes a wait.
struct Awaited {
  SymmWait wait;
  uint32_t number = 0;          // number of the barrier or signal
  uint32_t peer = kSymmNobody;  // the member for which the rank waits
  uint64_t begun_ns = 0;        // result of begin_wait(); 0 if the wait is not recorded
};

VERBENA_DEVICE uint64_t pack_failure(const SymmContext& context, const Awaited& awaited) {
  return static_cast<uint64_t>(awaited.wait) | uint64_t{awaited.number} << kSymmFailureNumber |
         uint64_t{awaited.peer} << kSymmFailurePeer |
         static_cast<uint64_t>(context.team_rank) << kSymmFailureRank;
}

// Returns whether the team has failed: a wait timed out on any member, or a call was invalid. The ranks may
// then be out of step, and slots may contain data of another call.
VERBENA_DEVICE bool has_failed(const uint64_t* failure) {
  return failure != nullptr && load_relaxed<Scope::kSystem>(failure) != 0;
}
VERBENA_DEVICE bool has_failed(const SymmContext& context) {
  return has_failed(context.failure);
}

// Sets the failure word of this rank only. Returns false if the word was already set or does not exist.
VERBENA_DEVICE bool fail_rank(const SymmContext& context, const Awaited& awaited) {
  return context.failure != nullptr && compare_exchange<Order::kRelaxed, Scope::kSystem>(
                                           context.failure, 0, pack_failure(context, awaited)) == 0;
}

// Sets the failure word of all members, unless the word of this rank is already set. Each thread whose wait
// timed out makes the call; the value of the first thread remains. The call notifies members that only the
// network reaches at best effort, and does not wait. If a notification is lost, the member's own waits time
// out.
template <typename Context>
VERBENA_DEVICE_FAR void fail_team(const Context& context, const Awaited& awaited) {
  if (!fail_rank(context, awaited)) return;
  uint64_t* const word = context.failure;
  const uint64_t bits = pack_failure(context, awaited);
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

// Returns the combined result of all threads of a group, like agree(). A thread whose wait timed out also
// sets the failure word.
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

// Returns kTimedOut in all threads of the group if the team has failed. Kernels call this function when they
// start.
template <typename Context, typename Group>
VERBENA_DEVICE SymmStatus begin_in_step(const Context& context, const Group& group) {
  return group.any(has_failed(context)) ? SymmStatus::kTimedOut : SymmStatus::kDone;
}

}  // namespace detail

}  // namespace verbena::device

#endif
