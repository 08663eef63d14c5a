// Functions with TileScale's names (src/tl_templates/cuda: ldst.h, sync.h, intrin.h), for kernels that
// TileScale generates. Each function calls a function of this library. Names, template parameters and the
// order of arguments are the same as in TileScale. The folder include/verbena/tilescale has headers with
// TileScale's file names; tilescale_ranks.cuh has the functions for communication between ranks.
//
// Differences from TileScale: weak loads compile to valid PTX (TileScale's do not). Waits and barriers have
// acquire semantics, end at a time limit, and return a result. A block arrives at a barrier only after all
// its threads have finished their work. If a wait is called without limits, as in generated code, it ends
// after VERBENA_TILESCALE_TIMEOUT_NS.
//
// Loads and stores move 1, 2, 4, 8 or 16 bytes. `na` selects L1::no_allocate, and `nc` selects the
// non-coherent path. The scope of a weak or volatile access is ignored, as in TileScale, because these
// accesses have no scope in PTX.
#ifndef VERBENA_DEVICE_TILESCALE_CUH
#define VERBENA_DEVICE_TILESCALE_CUH

#include "verbena/device/barrier.cuh"
#include "verbena/device/copy.cuh"
#include "verbena/device/warpgroup.cuh"

#ifndef VERBENA_TILESCALE_TIMEOUT_NS
#define VERBENA_TILESCALE_TIMEOUT_NS 60000000000u
#endif
#ifndef TL_DEVICE
#define TL_DEVICE VERBENA_DEVICE
#endif

// In the global namespace, as in TileScale.
enum class Semantic { WEAK, VOLATILE, ACQUIRE, RELEASE, RELAXED };
enum class Scope { CTA, GPU, SYS };

#define IS_MASTER_THREAD() (::verbena::device::thread_index() == 0)
#define IS_MASTER_BLOCK() (::verbena::device::block_index() == 0)
#define BARRIER_MAGIC 0x80000000u

namespace tl {

namespace detail {

namespace vd = ::verbena::device;

template <Semantic semantic>
inline constexpr vd::Order kOrder = semantic == Semantic::WEAK       ? vd::Order::kWeak
                                    : semantic == Semantic::VOLATILE ? vd::Order::kVolatile
                                    : semantic == Semantic::ACQUIRE  ? vd::Order::kAcquire
                                    : semantic == Semantic::RELEASE  ? vd::Order::kRelease
                                                                     : vd::Order::kRelaxed;
template <Semantic semantic, ::Scope scope>
inline constexpr vd::Scope kScope =
    semantic == Semantic::WEAK || semantic == Semantic::VOLATILE ? vd::Scope::kThreads
    : scope == ::Scope::CTA                                      ? vd::Scope::kBlock
    : scope == ::Scope::GPU                                      ? vd::Scope::kGpu
                                                                 : vd::Scope::kSystem;
template <bool nc, bool na>
inline constexpr vd::Cache kCache = nc && na ? vd::Cache::kNonCoherentNoAllocate
                                    : nc     ? vd::Cache::kNonCoherent
                                    : na     ? vd::Cache::kNoAllocate
                                             : vd::Cache::kDefault;

VERBENA_DEVICE vd::WaitLimits limit_by_default() {
  return vd::WaitLimits::within(VERBENA_TILESCALE_TIMEOUT_NS);
}

// The size of the type to which a pointer points, or 0 if the address is an integer.
template <typename T>
inline constexpr uint32_t kElementBytes = 0;
template <typename T>
inline constexpr uint32_t kElementBytes<T*> = sizeof(T);

// Convert the address argument of a wait to a pointer. An integer is the address of a 32-bit word, as in
// TileScale.
template <typename T>
VERBENA_DEVICE const T* as_words(const T* ptr) {
  return ptr;
}
VERBENA_DEVICE const int32_t* as_words(uint64_t address) {
  return reinterpret_cast<const int32_t*>(address);
}

}  // namespace detail

// Store and load a value of type T. P is the type of a pointer to global memory, or uint64_t if the address
// is passed as an integer.
template <Semantic semantic, ::Scope scope, bool na, typename P, typename T>
VERBENA_DEVICE void st(P ptr, T value) {
  detail::vd::store<detail::kOrder<semantic>, detail::kScope<semantic, scope>, detail::kCache<false, na>,
                    detail::vd::Space::kGlobal>((T*)ptr, value);
}
template <Semantic semantic, ::Scope scope, bool nc, bool na, typename P, typename T>
VERBENA_DEVICE void ld(const P ptr, T& value) {
  value = detail::vd::load<detail::kOrder<semantic>, detail::kScope<semantic, scope>, detail::kCache<nc, na>,
                           detail::vd::Space::kGlobal>((const T*)ptr);
}

VERBENA_DEVICE void memory_fence_cta() {
  detail::vd::fence<detail::vd::Order::kAcquireRelease, detail::vd::Scope::kBlock>();
}
VERBENA_DEVICE void memory_fence_gpu() {
  detail::vd::fence<detail::vd::Order::kAcquireRelease, detail::vd::Scope::kGpu>();
}
VERBENA_DEVICE void memory_fence_sys() {
  detail::vd::fence<detail::vd::Order::kAcquireRelease, detail::vd::Scope::kSystem>();
}

VERBENA_DEVICE uint32_t ld_acquire_gpu_u32(const uint32_t* ptr) {
  return detail::vd::load_acquire<detail::vd::Scope::kGpu>(ptr);
}
VERBENA_DEVICE int ld_acquire(const int* ptr) {
  return detail::vd::load_acquire<detail::vd::Scope::kGpu>(ptr);
}
VERBENA_DEVICE int ld_volatile_global(const int* ptr) {
  return detail::vd::load<detail::vd::Order::kVolatile, detail::vd::Scope::kThreads,
                          detail::vd::Cache::kDefault, detail::vd::Space::kGlobal>(ptr);
}

// Add to a word and return the previous value. The pointers are pointers to const, as in TileScale.
#define VERBENA_NAME_ADD(name, order, scope)                                                                 \
  VERBENA_DEVICE uint32_t name(const uint32_t* ptr, uint32_t value) {                                        \
    return detail::vd::fetch_add<detail::vd::Order::order, detail::vd::Scope::scope>((uint32_t*)ptr, value); \
  }
VERBENA_NAME_ADD(atomic_add_release_gpu_u32, kRelease, kGpu)
VERBENA_NAME_ADD(ptx_atom_add_relaxed_gpu, kRelaxed, kGpu)
VERBENA_NAME_ADD(ptx_atom_add_acquire_gpu, kAcquire, kGpu)
VERBENA_NAME_ADD(ptx_atom_add_release_gpu, kRelease, kGpu)
VERBENA_NAME_ADD(ptx_atom_add_acq_rel_gpu, kAcquireRelease, kGpu)
VERBENA_NAME_ADD(ptx_atom_add_relaxed_sys, kRelaxed, kSystem)
VERBENA_NAME_ADD(ptx_atom_add_acquire_sys, kAcquire, kSystem)
VERBENA_NAME_ADD(ptx_atom_add_release_sys, kRelease, kSystem)
VERBENA_NAME_ADD(ptx_atom_add_acq_rel_sys, kAcquireRelease, kSystem)
#undef VERBENA_NAME_ADD
VERBENA_DEVICE int atomic_load_acquire_sys_s32(const int* ptr) {
  return detail::vd::load_acquire<detail::vd::Scope::kSystem>(ptr);
}

// A single-use barrier for kExpected thread blocks. Call init_barrier_gpu() in an earlier kernel, because in
// the same kernel another block might arrive before the initialisation. Alternatively, the host may write
// kBarrierStart to the word.
template <uint32_t kExpected>
inline constexpr uint32_t kBarrierStart = BARRIER_MAGIC - kExpected;
template <const uint32_t kExpected>
VERBENA_DEVICE void init_barrier_gpu(uint32_t* barrier) {
  if (IS_MASTER_BLOCK() && IS_MASTER_THREAD())
    detail::vd::store_relaxed<detail::vd::Scope::kGpu>(barrier, kBarrierStart<kExpected>);
}
// All threads of a block call the functions of the barrier.
VERBENA_DEVICE void arrive_barrier_gpu(uint32_t* barrier) {
  detail::vd::sync_block();
  if (IS_MASTER_THREAD()) atomic_add_release_gpu_u32(barrier, 1);
}
[[nodiscard]] VERBENA_DEVICE detail::vd::WaitResult wait_barrier_gpu(uint32_t* barrier,
                                                                     const detail::vd::WaitLimits& limits) {
  return detail::vd::wait_together<detail::vd::Relation::kGreaterEqual, detail::vd::Scope::kGpu>(
      detail::vd::BlockGroup{}, barrier, BARRIER_MAGIC, limits);
}
[[nodiscard]] VERBENA_DEVICE detail::vd::WaitResult sync_barrier_gpu(uint32_t* barrier,
                                                                     const detail::vd::WaitLimits& limits) {
  arrive_barrier_gpu(barrier);
  return wait_barrier_gpu(barrier, limits);
}
VERBENA_DEVICE detail::vd::WaitResult wait_barrier_gpu(uint32_t* barrier) {
  return wait_barrier_gpu(barrier, detail::limit_by_default());
}
VERBENA_DEVICE detail::vd::WaitResult sync_barrier_gpu(uint32_t* barrier) {
  return sync_barrier_gpu(barrier, detail::limit_by_default());
}

// A reusable barrier of all blocks of a grid, which must be resident at the same time. `barrier` points to a
// word that must be 0 before the first use. The word's highest bit toggles when all blocks have arrived.
VERBENA_DEVICE uint32_t sync_grids_arrive(uint32_t* barrier) {
  detail::vd::sync_block();
  if (!IS_MASTER_THREAD()) return 0;
  const uint32_t others = detail::vd::blocks_per_grid() - 1;
  return atomic_add_release_gpu_u32(barrier, IS_MASTER_BLOCK() ? BARRIER_MAGIC - others : 1);
}
// @param before  the result of sync_grids_arrive() in the same thread
VERBENA_DEVICE detail::vd::WaitResult sync_grids_wait(uint32_t before, uint32_t* barrier) {
  detail::vd::WaitResult mine = detail::vd::WaitResult::kReached;
  if (IS_MASTER_THREAD()) {
    mine = detail::vd::wait_for(detail::limit_by_default(), [&] {
      return ((before ^ ld_acquire_gpu_u32(barrier)) & BARRIER_MAGIC) != 0;
    });
  }
  return detail::vd::agree(detail::vd::BlockGroup{}, mine);
}
VERBENA_DEVICE detail::vd::WaitResult sync_grid(uint32_t* barrier) {
  return sync_grids_wait(sync_grids_arrive(barrier), barrier);
}

// Define wait_eq(ptr, value, limits) and so on, which wait until a word satisfies the comparison with
// `value`. One thread makes the call. Words are signed or unsigned integers of 4 or 8 bytes.
#define VERBENA_NAME_WAIT(name, relation)                                                                 \
  template <typename T>                                                                                   \
  [[nodiscard]] VERBENA_DEVICE detail::vd::WaitResult wait_##name(                                        \
      const T* ptr, ::verbena::device::detail::Same<T> value, const detail::vd::WaitLimits& limits) {     \
    return detail::vd::wait_until<detail::vd::Relation::relation, detail::vd::Scope::kSystem>(ptr, value, \
                                                                                              limits);    \
  }                                                                                                       \
  template <typename P, typename T>                                                                       \
  VERBENA_DEVICE detail::vd::WaitResult wait_##name(P ptr, T value) {                                     \
    return wait_##name(detail::as_words(ptr), value, detail::limit_by_default());                         \
  }
VERBENA_NAME_WAIT(eq, kEqual)
VERBENA_NAME_WAIT(ne, kNotEqual)
VERBENA_NAME_WAIT(ge, kGreaterEqual)
VERBENA_NAME_WAIT(le, kLessEqual)
VERBENA_NAME_WAIT(gt, kGreater)
VERBENA_NAME_WAIT(lt, kLess)
#undef VERBENA_NAME_WAIT

VERBENA_DEVICE int get_lane_idx(int warp_size = 32) {
  return static_cast<int>(detail::vd::thread_index()) % (warp_size > 0 ? warp_size : 32);
}
VERBENA_DEVICE int get_warp_idx(int warp_size = 32) {
  return static_cast<int>(detail::vd::thread_index()) / (warp_size > 0 ? warp_size : 32);
}
VERBENA_DEVICE int get_warp_group_idx(int warp_size = 32, int warps_per_group = 4) {
  return get_warp_idx(warp_size) / (warps_per_group > 0 ? warps_per_group : 4);
}
// Returns true in one thread of each `thread_extent` consecutive threads of a block. thread_extent is a
// multiple of 32; 0 stands for the whole block.
template <int thread_extent>
VERBENA_DEVICE bool tl_shuffle_elect() {
  static_assert(thread_extent >= 0 && thread_extent % 32 == 0,
                "verbena: thread_extent must be a multiple of 32");
  if constexpr (thread_extent == 0) {
    return detail::vd::thread_index() == 0;
  } else {
    return detail::vd::thread_index() % thread_extent == 0;
  }
}

// Copy N elements with a warp or a block. All threads of the warp or block make the call, and must sync
// before a thread reads elements that another thread has copied. At least one of the two addresses must be a
// pointer, because its type determines the type of the elements. Addresses may have any alignment.
// UNROLL_FACTOR and enable_aggressive_vectorize have no effect.
template <int N, int UNROLL_FACTOR = 4, bool enable_aggressive_vectorize = false, typename D, typename S>
VERBENA_DEVICE void cp_warp(D dst, S src) {
  constexpr uint32_t kBytes =
      detail::kElementBytes<D> != 0 ? detail::kElementBytes<D> : detail::kElementBytes<S>;
  static_assert(N >= 0 && kBytes != 0, "verbena: one of the addresses must be a typed pointer");
  detail::vd::copy_warp((void*)dst, (const void*)src, size_t{N} * kBytes);
}
template <int N, typename D, typename S>
VERBENA_DEVICE void cp_block(D dst, S src) {
  constexpr uint32_t kBytes =
      detail::kElementBytes<D> != 0 ? detail::kElementBytes<D> : detail::kElementBytes<S>;
  static_assert(N >= 0 && kBytes != 0, "verbena: one of the addresses must be a typed pointer");
  detail::vd::copy_block((void*)dst, (const void*)src, size_t{N} * kBytes);
}

// For sm_90a only; see warpgroup.cuh.
VERBENA_DEVICE void warpgroup_arrive() {
  detail::vd::fence_warpgroup();
}
VERBENA_DEVICE void warpgroup_commit_batch() {
  detail::vd::commit_warpgroup();
}
template <int NumMma>
VERBENA_DEVICE void warpgroup_wait() {
  detail::vd::wait_warpgroup<NumMma>();
}
template <uint32_t RegCount>
VERBENA_DEVICE void warpgroup_reg_alloc() {
  detail::vd::take_registers<RegCount>();
}
template <uint32_t RegCount>
VERBENA_DEVICE void warpgroup_reg_dealloc() {
  detail::vd::give_registers<RegCount>();
}

}  // namespace tl

#endif
