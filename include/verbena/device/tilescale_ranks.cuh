// Functions with TileScale's names for communication between ranks. The functions read the table of ranks,
// copy between ranks, and wait in barriers between blocks of all ranks. Every program has a table of ranks,
// `meta_data`, in constant memory. Before a launch, the host fills the table with the words that a team's
// make_tilescale_table() returns (verbena.hpp, Python):
//   [0]      this rank
//   [1]      number of ranks, at most kTilescaleMaxRanks
//   [2 + r]  address at which this GPU has mapped rank r's memory; 0 if loads and stores do not reach rank r
//   [1023]   address of the team's SymmContext in GPU memory, for nvshmem_names.cuh; 0 if there is none
// To access memory of a peer, pass the local address at the same offset; it must lie in the window from which
// the table was made. Data moves by loads and stores. For peers that loads and stores do not reach, use
// nvshmem_names.cuh.
#ifndef VERBENA_DEVICE_TILESCALE_RANKS_CUH
#define VERBENA_DEVICE_TILESCALE_RANKS_CUH

#include "verbena/device/symm_barrier.cuh"
#include "verbena/device/symm_collect.cuh"
#include "verbena/device/tilescale.cuh"

namespace tl {

inline constexpr int kTilescaleTableWords = 1024;
inline constexpr int kTilescaleMaxRanks = kTilescaleTableWords - 3;

}  // namespace tl

// This header defines TileScale's symbol meta_data, so only one source file of a device link may include it.
#if VERBENA_FREESTANDING
extern "C" {
__attribute__((constant)) uint64_t meta_data[tl::kTilescaleTableWords];
}
#elif !VERBENA_EMULATED
extern "C" {
__constant__ uint64_t meta_data[tl::kTilescaleTableWords];
}
#endif

namespace tl {

namespace detail {

#if VERBENA_EMULATED
// The table is in the block's shared memory. The kernel of a test writes the table first.
inline uint64_t* find_table() {
  static const char key = 0;
  return static_cast<uint64_t*>(
      vd::emulation::shared_memory(&key, sizeof(uint64_t) * kTilescaleTableWords, alignof(uint64_t)));
}
#else
VERBENA_DEVICE const uint64_t* find_table() {
  return meta_data;
}
#endif

// Returns the context in the table, or null if the table has none.
VERBENA_DEVICE const verbena::SymmContext* find_team() {
  return reinterpret_cast<const verbena::SymmContext*>(find_table()[kTilescaleTableWords - 1]);
}

}  // namespace detail

VERBENA_DEVICE uint64_t get_rank() {
  return detail::find_table()[0];
}
VERBENA_DEVICE uint64_t get_num_ranks() {
  return detail::find_table()[1];
}
VERBENA_DEVICE uint64_t get_remote_base_ptr(uint64_t rank) {
  return detail::find_table()[2 + rank];
}
template <typename T>
VERBENA_DEVICE uint64_t get_uintptr_t(T* ptr) {
  return reinterpret_cast<uint64_t>(ptr);
}

// Returns the address of the memory of rank `pe` at the same offset as `ptr`. Loads and stores must reach the
// rank. A negative `pe` stands for this rank.
template <typename P>
VERBENA_DEVICE P get_remote_ptr(P ptr, int pe) {
  if (pe < 0) return ptr;
  return (P)((uint64_t)ptr - get_remote_base_ptr(get_rank()) +
             get_remote_base_ptr(static_cast<uint64_t>(pe)));
}

// Copy N elements from `src` to `dst`. In a put, `dst` is at rank `pe`; in a get, `src` is at rank `pe`. The
// peer sees the data of a put after a signal or barrier that follows the put.
#define VERBENA_NAME_COPY(scope)                               \
  template <int N, typename D, typename S>                     \
  VERBENA_DEVICE void put_##scope(D dst, S src, int pe = -1) { \
    cp_##scope<N>(get_remote_ptr(dst, pe), src);               \
  }                                                            \
  template <int N, typename D, typename S>                     \
  VERBENA_DEVICE void get_##scope(D dst, S src, int pe = -1) { \
    cp_##scope<N>(dst, get_remote_ptr(src, pe));               \
  }
VERBENA_NAME_COPY(warp)
VERBENA_NAME_COPY(block)
#undef VERBENA_NAME_COPY

// A reusable barrier between one block on each of the first `num_ranks` ranks. All threads of these blocks
// make the call. need_fence has no effect: the barrier always orders earlier memory accesses before later
// memory accesses.
//
// The pair of ranks r and p uses word p in the memory of rank r. Rank r adds a constant to the word, and
// rank p subtracts the same constant. Rank r waits until the word is 0 or less, which means that rank p has
// arrived.
// @param offset  offset of `num_ranks` 32-bit words from the start of a rank's memory, in bytes; the words
//                must be 0 before the first use
template <bool need_fence = true>
VERBENA_DEVICE detail::vd::WaitResult barrier_blocks(uint64_t offset, int rank, int num_ranks) {
  namespace vd = ::verbena::device;
  constexpr uint32_t kStep = 1024;
  vd::sync_block();
  const auto find = [&](int owner, int word) {
    return reinterpret_cast<uint32_t*>(get_remote_base_ptr(static_cast<uint64_t>(owner)) + offset) + word;
  };
  const auto first = static_cast<int>(vd::thread_index()), step = static_cast<int>(vd::threads_per_block());
  for (int peer = first; peer < num_ranks; peer += step) {
    // This addition is relaxed, because only this thread waits for the word.
    vd::reduce_add<vd::Order::kRelaxed, vd::Scope::kSystem>(find(rank, peer), kStep);
    vd::reduce_add<vd::Order::kRelease, vd::Scope::kSystem>(find(peer, rank), 0u - kStep);
  }
  const vd::WaitLimits limits = detail::limit_by_default();
  vd::WaitResult mine = vd::WaitResult::kReached;
  for (int peer = first; peer < num_ranks && mine == vd::WaitResult::kReached; peer += step)
    mine = vd::wait_until<vd::Relation::kLessEqual, vd::Scope::kSystem>(
        reinterpret_cast<const int32_t*>(find(rank, peer)), 0, limits);
  return vd::agree(vd::BlockGroup{}, mine);
}
VERBENA_DEVICE detail::vd::WaitResult sync_blocks(uint64_t offset, int rank, int num_ranks) {
  return barrier_blocks<false>(offset, rank, num_ranks);
}

// Collective functions of a team. `team` is a SymmContext, or the context of a SymmWorkspace. One block of
// each member makes the call. The functions use barrier 511 of the team. barrier_all() also completes earlier
// operations by NICs; sync_all() does not.
inline constexpr uint32_t kBarrierOfAll = verbena::kSymmBarriers - 1;

template <typename Context, typename Group = detail::vd::BlockGroup>
VERBENA_DEVICE verbena::SymmStatus barrier_all(const Context& team, const Group& group = {}) {
  return detail::vd::symm_barrier(team, kBarrierOfAll, group);
}
template <typename Context, typename Group = detail::vd::BlockGroup>
VERBENA_DEVICE verbena::SymmStatus sync_all(const Context& team, const Group& group = {}) {
  return detail::vd::symm_sync(team, kBarrierOfAll, group);
}
// Copies `count` elements from `src` of the root to `dst` of every member.
template <typename T, typename Context, typename Group = detail::vd::BlockGroup>
VERBENA_DEVICE verbena::SymmStatus broadcast(const Context& team, T* dst, const T* src, uint64_t count,
                                             int root, const Group& group = {}) {
  return detail::vd::symm_broadcast(team, dst, src, count * sizeof(T), root, kBarrierOfAll, group);
}
// Copies `count` elements from each member to `dst` of every member, in rank order.
template <typename T, typename Context, typename Group = detail::vd::BlockGroup>
VERBENA_DEVICE verbena::SymmStatus fcollect(const Context& team, T* dst, const T* src, uint64_t count,
                                            const Group& group = {}) {
  return detail::vd::symm_fcollect(team, dst, src, count * sizeof(T), kBarrierOfAll, group);
}

}  // namespace tl

#endif
