// Signals are 64-bit words that belong to a team. A rank may set a signal of any rank, add to a signal of any
// rank, and wait for its own signals. All threads of a group (group.cuh) make the same call, and the group
// signals or waits once. A rank may set a signal only while no other rank sets it or adds to it.
//
// A rank that has waited for a signal sees everything that the sending group did before the signal. This
// includes the group's loads and stores, and all puts and signals to the same peer that were posted by the
// group's block or through the given queue. To include NIC operations on other peers, call symm_quiet()
// before the signal. symm_word.cuh has functions for words in the application's windows.
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

// Sets or adds to a signal of a peer that loads and stores reach. The update is a release at system scope.
// One thread makes the call. `operation` is kSet or kAdd.
template <typename Context>
VERBENA_DEVICE void write_signal(const Context& context, int64_t delta_bytes, uint32_t signal, uint64_t value,
                                 SymmSignalOperation operation) {
  uint64_t* const word = shift(context.signals + signal, delta_bytes);
  if (operation == SymmSignalOperation::kAdd) return reduce_add<Order::kRelease, Scope::kSystem>(word, value);
  // The signal is the sum of this word and the network's word. Subtracting the network's word makes the sum
  // equal to `value`.
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

// Posts a request for a member that is reachable only over the network: one thread of the group calls
// `ask()`. `ask` should capture everything except the context by value. A variable captured by reference is
// kept in memory instead of registers, even when the member is reachable by loads and stores.
template <typename Context, typename Group, typename Ask>
VERBENA_DEVICE_FAR SymmStatus post_once(const Context& context, int32_t peer, const Group& group,
                                        const Ask& ask) {
  if (!SymmNetwork<Context>::is_there(context)) return SymmStatus::kUnreachable;
  group.sync();
  WaitResult mine = WaitResult::kReached;
  if (group.elect()) mine = ask();
  return conclude(context, group, mine, {SymmWait::kRequest, 0, static_cast<uint32_t>(peer)});
}

// Signals a member that only the network reaches. One thread makes the call.
template <typename Context>
VERBENA_DEVICE WaitResult signal_remote(const Context& context, int32_t peer, uint32_t signal, uint64_t value,
                                        SymmSignalOperation operation, SymmQueue queue) {
  if (take_fault(context, SymmFault::kDropSignal)) return WaitResult::kReached;
  return SymmNetwork<Context>::signal(context, peer, signal, value, operation, queue);
}

}  // namespace detail

// Sets the peer's signal to `value`, adds `value`, or adds 1 (kIncrement, which ignores `value`). If only the
// network reaches the peer, the call waits only for a free queue entry. Setting a signal of such a peer takes
// a round trip, during which later operations of the queue on this peer are delayed. symm_put_value() has no
// such delay.
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

// Signals the peer after all puts and signals to the peer, from any block, that happen before the call. Such
// puts may, for example, precede a grid barrier before the call, or belong to an earlier kernel. So one
// signal is enough for the puts of many blocks. The caller does not wait for these puts, except over NVSHMEM.
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

// Returns the value of a signal of this rank, or 0 if the number is invalid. The read is an acquire at system
// scope.
template <typename Context>
VERBENA_DEVICE uint64_t symm_signal_read(const Context& context, uint32_t signal) {
  return signal < kSymmSignals ? detail::read_signal(context, signal) : 0;
}

// Waits until a signal of this rank satisfies the comparison with `wanted`. The wait is an acquire at system
// scope, for all threads of the group.
// @tparam T    type of the comparison: int64_t, or int32_t to compare only the lower half of the signal
// @param seen  receives the value that was read last, even if the call returns an error; null in all threads
//              if the value is not needed
template <typename T = int64_t, typename Context, typename Group = ThreadGroup>
[[nodiscard]] VERBENA_DEVICE SymmStatus symm_signal_wait_until(const Context& context, uint32_t signal,
                                                               SymmCompare compare, T wanted,
                                                               T* seen = nullptr, const Group& group = {}) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "verbena: T must have 32 or 64 bits");
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

// Sets a signal of this rank to 0. No other rank may change this signal at the same time.
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
