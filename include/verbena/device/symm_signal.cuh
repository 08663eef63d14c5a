// Signals: 64-bit words of a team that any rank sets or adds to on any other rank, and waits for on its own.
// Setting is defined while no other rank sets or adds to the same signal. All threads of a group (group.cuh)
// call, and the group signals or waits once.
//
// A rank that has waited for a signal sees what the group did before it: all loads and stores, and all puts
// and signals of the block, or of the named queue, to the same peer. To include what went to another peer by
// a NIC, call symm_quiet first. For signals in windows of your own see symm_word.cuh.
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

// Called by one thread; releases at system scope. Loads and stores reach the peer; not kIncrement.
template <typename Context>
VERBENA_DEVICE void write_signal(const Context& context, int64_t delta_bytes, uint32_t signal, uint64_t value,
                                 SymmSignalOperation operation) {
  uint64_t* const word = shift(context.signals + signal, delta_bytes);
  if (operation == SymmSignalOperation::kAdd) return reduce_add<Order::kRelease, Scope::kSystem>(word, value);
  // Makes the sum `value`: what the network has added before stays.
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

// Calls `ask()` once for the group, for a member beyond loads and stores. It captures by value all but the
// context: captures by reference would go to memory for other members too.
template <typename Context, typename Group, typename Ask>
VERBENA_DEVICE_FAR SymmStatus post_once(const Context& context, int32_t peer, const Group& group,
                                        const Ask& ask) {
  if (!SymmNetwork<Context>::is_there(context)) return SymmStatus::kUnreachable;
  group.sync();
  WaitResult mine = WaitResult::kReached;
  if (group.elect()) mine = ask();
  return conclude(context, group, mine, {SymmWait::kRequest, 0, static_cast<uint32_t>(peer)});
}

// Called by one thread, for a member beyond loads and stores.
template <typename Context>
VERBENA_DEVICE WaitResult signal_remote(const Context& context, int32_t peer, uint32_t signal, uint64_t value,
                                        SymmSignalOperation operation, SymmQueue queue) {
  if (take_fault(context, SymmFault::kDropSignal)) return WaitResult::kReached;
  return SymmNetwork<Context>::signal(context, peer, signal, value, operation, queue);
}

}  // namespace detail

// Sets the peer's signal to `value`, adds `value`, or adds 1 (`value` is ignored then). For a peer beyond
// loads and stores the call waits only for a free queue entry. Setting takes a round trip there, which delays
// later operations of the queue to that peer; symm_put_value() to a word of your own does not.
template <typename Context, typename Group = ThreadGroup>
VERBENA_DEVICE SymmStatus symm_signal(const Context& context, uint32_t signal, int32_t peer, uint64_t value,
                                      SymmSignalOperation operation, const Group& group = {},
                                      SymmQueue queue = {}) {
  if (!detail::is_signal(context, signal, peer, operation)) return SymmStatus::kInvalid;
  detail::replace_increment(operation, value);
  const int64_t delta_bytes = detail::get_delta(context, peer);
  if (delta_bytes == kSymmOutOfReach) {
    detail::record_signal(context, group, signal, peer, value);
    return detail::post_once(context, peer, group, [=, &context] {
      return detail::signal_remote(context, peer, signal, value, operation, queue);
    });
  }
  detail::record_signal(context, group, signal, peer, value);
  group.sync();
  if (group.elect() && !detail::take_fault(context, SymmFault::kDropSignal))
    detail::write_signal(context, delta_bytes, signal, value, operation);
  return SymmStatus::kDone;
}

// The same after the puts and signals of all blocks to the peer that happen before the call (before a barrier
// of the grid, or in an earlier kernel): one signal for the puts of many blocks. The caller does not wait for
// them, unless the backend needs it (NVSHMEM).
template <typename Context, typename Group = ThreadGroup>
VERBENA_DEVICE SymmStatus symm_signal_after_puts(const Context& context, uint32_t signal, int32_t peer,
                                                 uint64_t value, SymmSignalOperation operation,
                                                 const Group& group = {}, SymmQueue queue = {}) {
  if (!detail::is_signal(context, signal, peer, operation)) return SymmStatus::kInvalid;
  if (detail::get_delta(context, peer) != kSymmOutOfReach)
    return symm_signal(context, signal, peer, value, operation, group);
  detail::replace_increment(operation, value);
  detail::record_signal(context, group, signal, peer, value);
  return detail::post_once(context, peer, group, [=, &context] {
    const WaitResult result = SymmNetwork<Context>::follow_all(context, peer, queue);
    if (result != WaitResult::kReached) return result;
    return detail::signal_remote(context, peer, signal, value, operation, queue);
  });
}

// Returns a signal of this rank; acquires at system scope.
template <typename Context>
VERBENA_DEVICE uint64_t symm_signal_read(const Context& context, uint32_t signal) {
  return signal < kSymmSignals ? detail::read_signal(context, signal) : 0;
}

// Waits until this rank's signal, as T (int64_t, or int32_t: its lower half), compares with `wanted`;
// acquires at system scope for all threads of the group. `seen` is null in all threads or in none; each
// receives the value that ended the wait, also after an error.
template <typename T = int64_t, typename Context, typename Group = ThreadGroup>
[[nodiscard]] VERBENA_DEVICE SymmStatus symm_signal_wait_until(const Context& context, uint32_t signal,
                                                               SymmCompare compare, T wanted,
                                                               T* seen = nullptr, const Group& group = {}) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "verbena: a signal is compared as 32 or 64 bits");
  if (signal >= kSymmSignals) return SymmStatus::kInvalid;
  const uint64_t begun_ns = detail::begin_wait(context);
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
  const SymmStatus status =
      detail::conclude(context, group, mine, {SymmWait::kSignal, signal, kSymmNobody, begun_ns});
  if (seen != nullptr) *seen = static_cast<T>(group.share(static_cast<uint64_t>(value), is_elected));
  return status;
}

// Sets this rank's signal to 0. No rank may signal it at the same time.
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
