// Signals: 64-bit words of a team that any rank may set or add to at any other, and wait for at itself.
// Setting is defined while nobody else sets or adds to the same signal. A group (group.cuh) signals or waits
// once, all its threads calling.
//
// Who has waited for a signal sees what the group did before it: all loads and stores, and what the block, or
// the queue that is named, put to or signaled at the same peer. What went to another peer by a NIC is there
// behind a symm_quiet. Signals in windows of one's own: symm_word.cuh.
#ifndef VERBENA_DEVICE_SYMM_SIGNAL_CUH
#define VERBENA_DEVICE_SYMM_SIGNAL_CUH

#include "verbena/device/atomic.cuh"
#include "verbena/device/group.cuh"
#include "verbena/device/symm_failure.cuh"
#include "verbena/device/symm_verbena.cuh"

namespace verbena::device {

namespace detail {

template <typename Context>
VERBENA_DEVICE uint64_t read_signal(const Context& context, uint32_t signal) {
  uint64_t value = load_acquire<Scope::kSystem>(context.signals + signal);
  if (context.has_remote != 0) value += SymmNetwork<Context>::read_signal(context, signal, 0);
  return value;
}

template <typename T>
VERBENA_DEVICE bool holds(T value, SymmCompare compare, T wanted) {
  switch (compare) {
    case SymmCompare::kEqual:
      return value == wanted;
    case SymmCompare::kNotEqual:
      return value != wanted;
    case SymmCompare::kGreater:
      return value > wanted;
    case SymmCompare::kGreaterEqual:
      return value >= wanted;
    case SymmCompare::kLess:
      return value < wanted;
    default:
      return value <= wanted;
  }
}

// By one thread; releases at system scope. The peer is in reach; not kIncrement.
template <typename Context>
VERBENA_DEVICE void write_signal(const Context& context, int64_t delta_bytes, uint32_t signal, uint64_t value,
                                 SymmSignalOperation operation) {
  uint64_t* const word = shift(context.signals + signal, delta_bytes);
  if (operation == SymmSignalOperation::kAdd) return reduce_add<Order::kRelease, Scope::kSystem>(word, value);
  // The sum becomes `value`: what the network has added before stays.
  if (context.has_remote != 0) value -= SymmNetwork<Context>::read_signal(context, signal, delta_bytes);
  store_release<Scope::kSystem>(word, value);
}

VERBENA_DEVICE bool is_signal(const SymmContext& context, uint32_t signal, int32_t peer,
                              SymmSignalOperation operation) {
  return signal < kSymmSignals && is_member(context, peer) && static_cast<uint32_t>(operation) <= 2;
}

VERBENA_DEVICE void replace_increment(SymmSignalOperation& operation, uint64_t& value) {
  if (operation != SymmSignalOperation::kIncrement) return;
  operation = SymmSignalOperation::kAdd;
  value = 1;
}

// `ask()` once for the group, of a member out of reach. What it needs it holds by value, but for the context:
// by reference it would lie in memory for those in reach too.
template <typename Context, typename Group, typename Ask>
VERBENA_DEVICE_FAR SymmStatus post_once(const Context& context, int32_t peer, const Group& group,
                                        const Ask& ask) {
  if (!SymmNetwork<Context>::is_there(context)) return SymmStatus::kUnreachable;
  group.sync();
  WaitResult mine = WaitResult::kReached;
  if (group.elect()) mine = ask();
  return conclude(context, group, mine, {SymmWait::kRequest, 0, static_cast<uint32_t>(peer)});
}

}  // namespace detail

// Sets the peer's signal to `value`, adds it, or adds 1 (`value` is not used then). A peer out of reach is
// asked for: only the place in the queue is waited for. Setting takes a round trip there, which holds what
// the queue is asked for that peer behind it; symm_put_value() to a word of one's own takes none.
template <typename Context, typename Group = ThreadGroup>
VERBENA_DEVICE SymmStatus symm_signal(const Context& context, uint32_t signal, int32_t peer, uint64_t value,
                                      SymmSignalOperation operation, const Group& group = {},
                                      SymmQueue queue = {}) {
  if (!detail::is_signal(context, signal, peer, operation)) return SymmStatus::kInvalid;
  detail::replace_increment(operation, value);
  const int64_t delta_bytes = detail::get_delta(context, peer);
  if (delta_bytes == kSymmOutOfReach) {
    return detail::post_once(context, peer, group, [=, &context] {
      return SymmNetwork<Context>::signal(context, peer, signal, value, operation, queue);
    });
  }
  group.sync();
  if (group.elect()) detail::write_signal(context, delta_bytes, signal, value, operation);
  return SymmStatus::kDone;
}

// The same behind what all blocks have put to or signaled at the peer, as far as the group's threads know of
// it (behind a barrier of the grid, of the kernel before): one signal for many blocks' puts. Nobody here
// waits for them, unless the backend has nothing else (NVSHMEM).
template <typename Context, typename Group = ThreadGroup>
VERBENA_DEVICE SymmStatus symm_signal_behind_all(const Context& context, uint32_t signal, int32_t peer,
                                                 uint64_t value, SymmSignalOperation operation,
                                                 const Group& group = {}, SymmQueue queue = {}) {
  if (!detail::is_signal(context, signal, peer, operation)) return SymmStatus::kInvalid;
  if (detail::get_delta(context, peer) != kSymmOutOfReach)
    return symm_signal(context, signal, peer, value, operation, group);
  detail::replace_increment(operation, value);
  return detail::post_once(context, peer, group, [=, &context] {
    const WaitResult result = SymmNetwork<Context>::follow_all(context, peer, queue);
    if (result != WaitResult::kReached) return result;
    return SymmNetwork<Context>::signal(context, peer, signal, value, operation, queue);
  });
}

// Of this rank; acquires at system scope.
template <typename Context>
VERBENA_DEVICE uint64_t symm_signal_read(const Context& context, uint32_t signal) {
  return signal < kSymmSignals ? detail::read_signal(context, signal) : 0;
}

// Until this rank's signal, as T (int64_t, or int32_t: its lower half), compares so with `wanted`; acquires
// at system scope for all of the group. `seen`, if not null in any thread, is not null in all of them, and
// each one's is given the value that ended the wait, of any end.
template <typename T = int64_t, typename Context, typename Group = ThreadGroup>
[[nodiscard]] VERBENA_DEVICE SymmStatus symm_signal_wait_until(const Context& context, uint32_t signal,
                                                               SymmCompare compare, T wanted,
                                                               T* seen = nullptr, const Group& group = {}) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "verbena: a signal is compared as 32 or 64 bits");
  if (signal >= kSymmSignals) return SymmStatus::kInvalid;
  const WaitLimits limits = detail::limit_wait(context);
  WaitResult mine = WaitResult::kReached;
  T value{};
  const bool is_elected = group.elect();
  if (is_elected) {
    mine = wait_for(limits, [&] {
      value = static_cast<T>(detail::read_signal(context, signal));
      return detail::holds(value, compare, wanted);
    });
  }
  const SymmStatus status = detail::conclude(context, group, mine, {SymmWait::kSignal, signal});
  if (seen != nullptr) *seen = static_cast<T>(group.share(static_cast<uint64_t>(value), is_elected));
  return status;
}

// This rank's signal becomes 0, whatever it was. Nobody else signals it meanwhile.
template <typename Context, typename Group = ThreadGroup>
VERBENA_DEVICE SymmStatus symm_signal_reset(const Context& context, uint32_t signal,
                                            const Group& group = {}) {
  if (signal >= kSymmSignals) return SymmStatus::kInvalid;
  group.sync();
  if (group.elect()) {
    SymmNetwork<Context>::reset_signal(context, signal);
    detail::write_signal(context, 0, signal, 0, SymmSignalOperation::kSet);
  }
  return SymmStatus::kDone;
}

}  // namespace verbena::device

#endif
