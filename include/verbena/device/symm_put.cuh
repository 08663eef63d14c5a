// Data in peers' memory: put, get, atomics, and what orders them. A group of threads moves a range together;
// all of it call. Addresses at a peer are given as this rank's own (symm_abi.h). The other side of a copy is
// any memory of this GPU where the peer is in reach of loads and stores; otherwise a NIC copies, and it lies
// in the heap too. Lengths are in bytes. Ranges do not overlap. Each thread may read any part of the source:
// the caller syncs the group where its threads have written it.
//
// A put is under way when the call returns: what shows it to the peer is a signal or a barrier after it. If
// the peer is in reach, all threads of the group may reuse the source at once; otherwise behind symm_flush().
// A put of 4 or 8 bytes to a multiple of as many is one relaxed store at system scope: the peer may poll such
// a word and sees all of it or none. Of a longer one a peer that does not wait for its signal may see any
// part.
#ifndef VERBENA_DEVICE_SYMM_PUT_CUH
#define VERBENA_DEVICE_SYMM_PUT_CUH

#include "verbena/device/copy.cuh"
#include "verbena/device/symm_signal.cuh"

namespace verbena::device {

namespace detail {

VERBENA_DEVICE void copy_together(const ThreadGroup&, void* destination, const void* source,
                                  uint64_t length_bytes) {
  copy_thread(destination, source, length_bytes);
}
// Whole warps.
template <typename Group>
VERBENA_DEVICE void copy_together(const Group& group, void* destination, const void* source,
                                  uint64_t length_bytes) {
  copy_group(group, destination, source, length_bytes);
}

VERBENA_DEVICE bool is_at_peer(const SymmContext& context, const void* symmetric, uint64_t length_bytes,
                               int32_t peer) {
  return is_member(context, peer) && is_in_heap(context, symmetric, length_bytes);
}

template <typename Word>
VERBENA_DEVICE bool put_word(void* destination, const void* source, uint64_t length_bytes) {
  if (length_bytes != sizeof(Word) || reinterpret_cast<uint64_t>(destination) % sizeof(Word) != 0)
    return false;
  Word word = 0;
  if (reinterpret_cast<uint64_t>(source) % sizeof(Word) == 0) {
    word = load<Order::kWeak, Scope::kThreads>(static_cast<const Word*>(source));
  } else {
    const auto* const bytes = static_cast<const uint8_t*>(source);
    VERBENA_UNROLL_BY(1)
    for (uint32_t i = 0; i < sizeof(Word); ++i)
      word |= static_cast<Word>(load<Order::kWeak, Scope::kThreads>(bytes + i)) << (8 * i);
  }
  store_relaxed<Scope::kSystem>(static_cast<Word*>(destination), word);
  return true;
}

// To a member in reach. The source is in use until the group's next sync().
template <typename Group>
VERBENA_DEVICE void put_by_stores(const Group& group, void* there, const void* source,
                                  uint64_t length_bytes) {
  const bool is_word =
      (length_bytes == 4 || length_bytes == 8) && reinterpret_cast<uint64_t>(there) % length_bytes == 0;
  if (!is_word) return copy_together(group, there, source, length_bytes);
  if (!group.elect()) return;
  static_cast<void>(put_word<uint64_t>(there, source, length_bytes) ||
                    put_word<uint32_t>(there, source, length_bytes));
}

// From a member out of reach; waits until all of it is here.
template <typename Context, typename Group>
VERBENA_DEVICE SymmStatus get_by_network(const Context& context, void* destination, const void* source,
                                         uint64_t length_bytes, int32_t peer, const Group& group) {
  if constexpr (!SymmNetwork<Context>::kGets) {
    return SymmStatus::kUnreachable;
  } else {
    if (!NetworkTraits<Context>::gets(context)) return SymmStatus::kUnreachable;
    if (SymmNetwork<Context>::is_there(context) && !is_in_heap(context, destination, length_bytes))
      return SymmStatus::kInvalid;
    return post_once(context, peer, group, [=, &context] {
      if (length_bytes == 0) return WaitResult::kReached;
      return SymmNetwork<Context>::get(context, peer, destination, source, length_bytes);
    });
  }
}

}  // namespace detail

template <typename Context, typename Group = ThreadGroup>
VERBENA_DEVICE SymmStatus symm_put_async(const Context& context, void* destination, const void* source,
                                         uint64_t length_bytes, int32_t peer, const Group& group = {}) {
  if (!detail::is_at_peer(context, destination, length_bytes, peer)) return SymmStatus::kInvalid;
  const int64_t delta_bytes = detail::get_delta(context, peer);
  if (delta_bytes != kSymmOutOfReach) {
    detail::put_by_stores(group, detail::shift(destination, delta_bytes), source, length_bytes);
    group.sync();
    return SymmStatus::kDone;
  }
  if (!SymmNetwork<Context>::is_there(context)) return SymmStatus::kUnreachable;
  if (!detail::is_in_heap(context, source, length_bytes)) return SymmStatus::kInvalid;
  if (length_bytes == 0) return SymmStatus::kDone;
  return detail::post_once(context, peer, group, [=, &context] {
    return SymmNetwork<Context>::put(context, peer, destination, source, length_bytes);
  });
}

// A put and a signal behind it: whoever has waited for the signal sees the data.
template <typename Context, typename Group = ThreadGroup>
VERBENA_DEVICE SymmStatus symm_put_signal_async(const Context& context, void* destination, const void* source,
                                                uint64_t length_bytes, int32_t peer, uint32_t signal,
                                                uint64_t value,
                                                SymmSignalOperation operation = SymmSignalOperation::kAdd,
                                                const Group& group = {}) {
  if (!detail::is_signal(context, signal, peer, operation)) return SymmStatus::kInvalid;
  if (!detail::is_in_heap(context, destination, length_bytes)) return SymmStatus::kInvalid;
  const int64_t delta_bytes = detail::get_delta(context, peer);
  if (delta_bytes != kSymmOutOfReach) {
    detail::put_by_stores(group, detail::shift(destination, delta_bytes), source, length_bytes);
    return symm_signal(context, signal, peer, value, operation, group);  // syncs the group first
  }
  if (!SymmNetwork<Context>::is_there(context)) return SymmStatus::kUnreachable;
  if (!detail::is_in_heap(context, source, length_bytes)) return SymmStatus::kInvalid;
  if (length_bytes == 0) return symm_signal(context, signal, peer, value, operation, group);
  detail::replace_increment(operation, value);
  return detail::post_once(context, peer, group, [=, &context] {
    return SymmNetwork<Context>::put_signal(context, peer, destination, source, length_bytes, signal, value,
                                            operation);
  });
}

// The data is there for all of the group when it returns.
template <typename Context, typename Group = ThreadGroup>
VERBENA_DEVICE SymmStatus symm_get(const Context& context, void* destination, const void* source,
                                   uint64_t length_bytes, int32_t peer, const Group& group = {}) {
  if (!detail::is_at_peer(context, source, length_bytes, peer)) return SymmStatus::kInvalid;
  const int64_t delta_bytes = detail::get_delta(context, peer);
  if (delta_bytes == kSymmOutOfReach)
    return detail::get_by_network(context, destination, source, length_bytes, peer, group);
  detail::copy_together(group, destination, detail::shift(source, delta_bytes), length_bytes);
  group.sync();
  return SymmStatus::kDone;
}

// One thread; of a word of 4 or 8 bytes in the heap of a peer in reach (symm_team_lsa). `before`, if not
// null, is given the value that it had.
template <Operation operation, Order order = Order::kRelaxed, typename T>
VERBENA_DEVICE SymmStatus symm_lsa_update(const SymmContext& context, T* address, detail::Same<T> value,
                                          int32_t peer, T* before = nullptr) {
  if (!detail::is_at_peer(context, address, sizeof(T), peer)) return SymmStatus::kInvalid;
  const int64_t delta_bytes = detail::get_delta(context, peer);
  if (delta_bytes == kSymmOutOfReach) return SymmStatus::kUnreachable;
  const T old = update<operation, order, Scope::kSystem>(detail::shift(address, delta_bytes), value);
  if (before != nullptr) *before = old;
  return SymmStatus::kDone;
}

// Orders this thread's accesses before it with those after, at the scope; no barrier.
template <Scope scope>
VERBENA_DEVICE void symm_fence() {
  fence<Order::kAcquireRelease, scope>();
}

// All that was put, got or signaled before, by whomever of this rank the group's threads know of (their block
// before a barrier of it, a kernel before theirs), is complete at every peer. Not collective.
template <typename Context, typename Group = ThreadGroup>
[[nodiscard]] VERBENA_DEVICE SymmStatus symm_quiet(const Context& context, const Group& group = {}) {
  group.sync();
  fence<Order::kAcquireRelease, Scope::kSystem>();  // by each thread: each may tell of it now
  WaitResult mine = WaitResult::kReached;
  if (group.elect()) mine = SymmNetwork<Context>::complete(context);
  return detail::conclude(context, group, mine, {SymmWait::kCompletion});
}

// The same of one peer: what loads and stores reach does not wait for NICs.
template <typename Context, typename Group = ThreadGroup>
[[nodiscard]] VERBENA_DEVICE SymmStatus symm_quiet(const Context& context, int32_t peer,
                                                   const Group& group = {}) {
  if (!detail::is_member(context, peer)) return SymmStatus::kInvalid;
  if (detail::get_delta(context, peer) == kSymmOutOfReach) return symm_quiet(context, group);
  group.sync();
  fence<Order::kAcquireRelease, Scope::kSystem>();
  return SymmStatus::kDone;
}

// The sources of all puts before, as symm_quiet counts them, may be reused.
template <typename Context, typename Group = ThreadGroup>
[[nodiscard]] VERBENA_DEVICE SymmStatus symm_flush(const Context& context, const Group& group = {}) {
  group.sync();
  WaitResult mine = WaitResult::kReached;
  if (group.elect()) mine = SymmNetwork<Context>::release_sources(context);
  return detail::conclude(context, group, mine, {SymmWait::kCompletion});
}

}  // namespace verbena::device

#endif
