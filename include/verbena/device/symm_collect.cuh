// One member's data at all members of a team, and every member's at all: with puts and a barrier, for blocks
// and grids that do it on the way. Fast ones over a workspace: collectives/.
#ifndef VERBENA_DEVICE_SYMM_COLLECT_CUH
#define VERBENA_DEVICE_SYMM_COLLECT_CUH

#include "verbena/device/symm_barrier.cuh"
#include "verbena/device/symm_put.cuh"

namespace verbena::device {

namespace detail {

// What the group's threads have written, to every member, this one too, beginning behind it: at any time each
// rank puts to another one.
template <typename Context, typename Group>
VERBENA_DEVICE SymmStatus put_to_all(const Context& context, void* destination, const void* source,
                                     uint64_t length_bytes, const Group& group) {
  const int32_t size = context.team_size;
  group.sync();
  for (int32_t i = 1; i <= size; ++i) {
    const int32_t peer = (context.team_rank + i) % size;
    // A member's own place may be the source.
    if (peer == context.team_rank && destination == source) continue;
    const SymmStatus status = symm_put_async(context, destination, source, length_bytes, peer, group);
    if (status != SymmStatus::kDone) return status;
  }
  return SymmStatus::kDone;
}

}  // namespace detail

// What `source` holds at `root` is at `destination` of every member when it returns; `source` may be
// `destination`. All members call, with their own addresses, a group each; `destination` is symmetric, and
// `source` where a put of it has to be. Nobody else uses the barrier, and nobody the destinations, meanwhile.
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

// The same of every member: member r's `length_bytes` are at `destination` + r * `length_bytes`.
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
