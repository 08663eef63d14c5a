// Functions with TileScale's names for communication between ranks: the table of ranks, copies between ranks,
// and barriers of blocks on all ranks. Every program has its own table `meta_data` in constant memory. Before
// a launch, the host fills it with the result of a team's make_tilescale_table() (verbena.hpp, Python):
//   [0]      this rank
//   [1]      number of ranks, at most kTilescaleMaxRanks
//   [2 + r]  address of rank r's memory on this GPU; 0: loads and stores do not reach rank r
//   [1023]   address of the team's SymmContext in GPU memory, for nvshmem_names.cuh; 0: none
// For memory of a peer, pass this rank's address of the same offset, in the window of the table. Data moves
// by loads and stores; nvshmem_names.cuh also serves peers that they do not reach.
#ifndef VERBENA_DEVICE_TILESCALE_RANKS_CUH
#define VERBENA_DEVICE_TILESCALE_RANKS_CUH

#include "verbena/device/symm_barrier.cuh"
#include "verbena/device/symm_collect.cuh"
#include "verbena/device/tilescale.cuh"

namespace tl {

inline constexpr int kTilescaleTableWords = 1024;
inline constexpr int kTilescaleMaxRanks = kTilescaleTableWords - 3;

}  // namespace tl

// Defines TileScale's symbol meta_data, so only one source file of a device link may include this header.
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
// The table is in the block's shared memory; the kernel of a test writes it first.
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

// Returns the context in the table, or null if it has none.
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

// Returns the address of the same offset at rank `pe`, which loads and stores must reach; -1 stands for this
// rank.
template <typename P>
VERBENA_DEVICE P get_remote_ptr(P ptr, int pe) {
  if (pe < 0) return ptr;
  return (P)((uint64_t)ptr - get_remote_base_ptr(get_rank()) +
             get_remote_base_ptr(static_cast<uint64_t>(pe)));
}

// Copy N elements from `src` to `dst`. In a put `dst` is at rank `pe`, in a get `src`. The peer sees the data
// of a put after a signal or barrier that follows it.
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
// call it. It also orders memory accesses before and after it, whatever need_fence is.
//
// Word p of rank r belongs to the pair of r and p: r adds a constant to it, and p subtracts the same
// constant. Rank r waits until the word is 0 or less, which means that p has arrived.
// @param offset  bytes from the start of a rank's memory to `num_ranks` 32-bit words, which are 0 before the
//                first use
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
    vd::reduce_add<vd::Order::kRelaxed, vd::Scope::kSystem>(find(rank, peer),
                                                            kStep);  // only this thread waits for the word
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

// Functions of a team, whose context is a SymmContext or the context of a SymmWorkspace. One block of each
// member makes the call. The functions use barrier 511 of the team. barrier_all() completes requests to NICs;
// sync_all() does not.
inline constexpr uint32_t kBarrierOfAll = verbena::kSymmBarriers - 1;

template <typename Context, typename Group = detail::vd::BlockGroup>
VERBENA_DEVICE verbena::SymmStatus barrier_all(const Context& team, const Group& group = {}) {
  return detail::vd::symm_barrier(team, kBarrierOfAll, group);
}
template <typename Context, typename Group = detail::vd::BlockGroup>
VERBENA_DEVICE verbena::SymmStatus sync_all(const Context& team, const Group& group = {}) {
  return detail::vd::symm_sync(team, kBarrierOfAll, group);
}
// Copies `count` elements of the root to `dst` of every member.
template <typename T, typename Context, typename Group = detail::vd::BlockGroup>
VERBENA_DEVICE verbena::SymmStatus broadcast(const Context& team, T* dst, const T* src, uint64_t count,
                                             int root, const Group& group = {}) {
  return detail::vd::symm_broadcast(team, dst, src, count * sizeof(T), root, kBarrierOfAll, group);
}
// Gathers `count` elements of each member to `dst` of every member, in rank order.
template <typename T, typename Context, typename Group = detail::vd::BlockGroup>
VERBENA_DEVICE verbena::SymmStatus fcollect(const Context& team, T* dst, const T* src, uint64_t count,
                                            const Group& group = {}) {
  return detail::vd::symm_fcollect(team, dst, src, count * sizeof(T), kBarrierOfAll, group);
}

}  // namespace tl

#endif
