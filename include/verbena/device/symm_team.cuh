// Functions that return the ranks of a team and the addresses of peers' symmetric memory. Any thread may call
// these functions, and they do not wait.
#ifndef VERBENA_DEVICE_SYMM_TEAM_CUH
#define VERBENA_DEVICE_SYMM_TEAM_CUH

#include "verbena/device/wait.cuh"
#include "verbena/symm_abi.h"

namespace verbena::device {

// The put queue through which a call requests RDMA. The queue's number is taken modulo the number of queues;
// the default is the block's queue (SymmContext::first_queue). A signal, or an update of a word, takes effect
// at the peer after all earlier operations on this peer through the same queue. Networks without put queues
// ignore a SymmQueue.
struct SymmQueue {
  static constexpr uint32_t kOfBlock = ~uint32_t{0};
  uint32_t number = kOfBlock;
};

// An operation in flight; see symm_get_async().
struct SymmRequest {
  uint64_t after = 0;  // the queue position after the operation; 0 if the operation is complete
  uint32_t queue = 0;
};

namespace detail {

VERBENA_DEVICE bool is_member(const SymmContext& context, int32_t peer) {
  return static_cast<uint32_t>(peer) < static_cast<uint32_t>(context.team_size);
}

// Returns the number of bytes to add to an address of this rank to get the member's address at the same
// offset.
VERBENA_DEVICE int64_t get_delta(const SymmContext& context, int32_t peer) {
  return context.team_size <= kSymmInlineDeltas ? context.inline_deltas[peer] : context.more_deltas[peer];
}
// Returns get_delta(), or kSymmOutOfReach if `peer` is not a rank of the team.
VERBENA_DEVICE int64_t find_delta(const SymmContext& context, int32_t peer) {
  return is_member(context, peer) ? get_delta(context, peer) : kSymmOutOfReach;
}

VERBENA_DEVICE bool is_in_heap(const SymmContext& context, const void* address, uint64_t length_bytes) {
  const auto begin = reinterpret_cast<uint64_t>(address);
  return begin >= context.heap_begin && begin <= context.heap_end && length_bytes <= context.heap_end - begin;
}

// Returns the symmetric address of registered memory, which lies outside the heap, or 0 if the memory is not
// registered.
template <typename Context>
VERBENA_DEVICE_FAR uint64_t find_alias(const Context& context, uint64_t begin, uint64_t length_bytes) {
  const SymmAliases* const aliases = context.aliases;
  const uint64_t count = aliases == nullptr ? 0 : load_relaxed<Scope::kSystem>(&aliases->count);
  for (uint64_t i = 0; i < count; ++i) {
    const SymmAlias& alias = aliases->entries[i];
    const uint64_t end = load_relaxed<Scope::kSystem>(&alias.end);
    if (begin >= load_relaxed<Scope::kSystem>(&alias.begin) && begin < end && length_bytes <= end - begin)
      return begin + load_relaxed<Scope::kSystem>(&alias.delta);
  }
  return 0;
}
// Returns whether the `length_bytes` bytes at `*address` are in the heap or in registered memory. If the
// memory is registered, replaces `*address` with the symmetric address.
template <typename T>
VERBENA_DEVICE bool find_symmetric(const SymmContext& context, T** address, uint64_t length_bytes) {
  if (is_in_heap(context, *address, length_bytes)) return true;
  *address = reinterpret_cast<T*>(find_alias(context, reinterpret_cast<uint64_t>(*address), length_bytes));
  return *address != nullptr;
}

template <typename T>
VERBENA_DEVICE T* shift(T* address, int64_t delta_bytes) {
  return reinterpret_cast<T*>(reinterpret_cast<uint64_t>(address) + static_cast<uint64_t>(delta_bytes));
}

VERBENA_DEVICE WaitLimits limit_wait(const SymmContext& context) {
  WaitLimits limits = WaitLimits::within(context.timeout_ns, context.abort_word);
  limits.late_word = context.failure;
  return limits;
}

// Converts the result of a wait to a status. After an abort, reads the reason from the abort word, which
// keeps its first value.
VERBENA_DEVICE SymmStatus as_status(const SymmContext& context, WaitResult result) {
  if (result == WaitResult::kReached) return SymmStatus::kDone;
  if (result == WaitResult::kTimedOut) return SymmStatus::kTimedOut;
  switch (static_cast<SymmAbort>(load_relaxed<Scope::kSystem>(context.abort_word))) {
    case SymmAbort::kNetworkFailed:
      return SymmStatus::kNetworkFailed;
    case SymmAbort::kRefused:
      return SymmStatus::kRefused;
    default:
      return SymmStatus::kAborted;
  }
}

}  // namespace detail

// Return the number of members, this rank's number in the team, and the number of members that loads and
// stores reach.
VERBENA_DEVICE int32_t symm_team_size(const SymmContext& context) {
  return context.team_size;
}
VERBENA_DEVICE int32_t symm_team_rank(const SymmContext& context) {
  return context.team_rank;
}
VERBENA_DEVICE int32_t symm_team_lsa_size(const SymmContext& context) {
  return context.lsa_size;
}
// Returns whether loads and stores reach the peer.
VERBENA_DEVICE bool symm_team_lsa(const SymmContext& context, int32_t peer) {
  return detail::find_delta(context, peer) != kSymmOutOfReach;
}

// Returns the address of the peer's memory at the same offset as `local`, for loads, stores and atomics. The
// address is valid until the window is freed. Returns null if loads and stores do not reach the peer, or if
// `local` is not in a window.
// @param local  address of this rank, symmetric or registered
template <typename T>
VERBENA_DEVICE T* symm_lsa_ptr(const SymmContext& context, T* local, int32_t peer) {
  const int64_t delta_bytes = detail::find_delta(context, peer);
  if (delta_bytes == kSymmOutOfReach || !detail::find_symmetric(context, &local, 1)) return nullptr;
  return detail::shift(local, delta_bytes);
}

// Returns the multicast address that corresponds to `local`. A multimem instruction on this address accesses
// the memory of all LSA ranks (the ranks that this rank reaches by loads and stores). Returns null if the
// team has no multicast.
template <typename T>
VERBENA_DEVICE T* symm_lsa_multicast_ptr(const SymmContext& context, T* local) {
  if (context.multicast_delta == 0 || !detail::find_symmetric(context, &local, 1)) return nullptr;
  return detail::shift(local, static_cast<int64_t>(context.multicast_delta));
}

// Returns the address of the peer's array of kSymmSignals words, which symm_signal() writes. The kernel may
// load and store these words. Returns null if loads and stores do not reach the peer.
VERBENA_DEVICE uint64_t* symm_lsa_signal_ptr(const SymmContext& context, int32_t peer) {
  return symm_lsa_ptr(context, context.signals, peer);
}

}  // namespace verbena::device

#endif
