// Broadcast and all-gather for kernels that also do other work. Each function consists of puts and a barrier.
// The folder collectives/ has faster collectives, which use a workspace.
#ifndef VERBENA_DEVICE_SYMM_COLLECT_CUH
#define VERBENA_DEVICE_SYMM_COLLECT_CUH

#include "verbena/device/symm_barrier.cuh"
#include "verbena/device/symm_put.cuh"

namespace verbena::device {

namespace detail {

// Puts the source to every member, including this rank. Each rank starts with the rank after itself, so that
// at any time the ranks write to different peers.
template <typename Context, typename Group>
VERBENA_DEVICE SymmStatus put_to_all(const Context& context, void* destination, const void* source,
                                     uint64_t length_bytes, const Group& group) {
  const int32_t size = context.team_size;
  group.sync();
  for (int32_t i = 1; i <= size; ++i) {
    const int32_t peer = (context.team_rank + i) % size;
    // On this rank, the destination may be the source itself.
    if (peer == context.team_rank && destination == source) continue;
    const SymmStatus status = symm_put_async(context, destination, source, length_bytes, peer, group);
    if (status != SymmStatus::kDone) return status;
  }
  return SymmStatus::kDone;
}

}  // namespace detail

// Copies the root's `source` to the `destination` of every member, and waits in a barrier. On each member,
// one group makes the call. No other group may use the barrier or the destinations at the same time.
// @param destination  address in a window, at the same offset on all ranks
// @param source       as in symm_put_async(); may be `destination` itself; has no effect on ranks other than
//                     the root
template <typename Context, typename Group = BlockGroup>
[[nodiscard]] VERBENA_DEVICE SymmStatus symm_broadcast(const Context& context, void* destination,
                                                       const void* source, uint64_t length_bytes,
                                                       int32_t root, uint32_t barrier,
                                                       const Group& group = {}) {
  if (!detail::is_member(context, root)) return SymmStatus::kInvalid;
  if (context.team_rank == root) {
    const SymmStatus status = detail::put_to_all(context, destination, source, length_bytes, group);
    if (status != SymmStatus::kDone) return status;
  }
  return symm_barrier(context, barrier, group);
}

// All-gather: copies the `length_bytes` bytes of each member r to destination + r * length_bytes of every
// member, and waits in a barrier. Parameters and rules are the same as in symm_broadcast(), except that
// `source` may be this rank's part of the destination.
template <typename Context, typename Group = BlockGroup>
[[nodiscard]] VERBENA_DEVICE SymmStatus symm_fcollect(const Context& context, void* destination,
                                                      const void* source, uint64_t length_bytes,
                                                      uint32_t barrier, const Group& group = {}) {
  void* const mine =
      static_cast<char*>(destination) + static_cast<uint32_t>(context.team_rank) * length_bytes;
  const SymmStatus status = detail::put_to_all(context, mine, source, length_bytes, group);
  return status == SymmStatus::kDone ? symm_barrier(context, barrier, group) : status;
}

}  // namespace verbena::device

#endif
