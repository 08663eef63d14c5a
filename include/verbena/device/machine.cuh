// GPU instructions that C++ does not have: thread and block indices, barriers of blocks, warps and clusters,
// warp shuffles and votes, clocks, programmatic dependent launch, and bit operations on two words. On a GPU,
// the functions are PTX instructions. On the host, the functions call the functions of emulation.h. The sync
// functions order the memory accesses of the participating threads, at block scope.
#ifndef VERBENA_DEVICE_MACHINE_CUH
#define VERBENA_DEVICE_MACHINE_CUH

#include "verbena/device/platform.cuh"
#if VERBENA_EMULATED
#include "verbena/device/emulation.h"
#endif

namespace verbena::device {

inline constexpr int kHardwareBarriers = 16;  // per block

#if VERBENA_PTX
#define VERBENA_READ(value, special) asm("mov.u32 %0, %%" special ";" : "=r"(value))
namespace detail {

// Converts a three-dimensional index to a one-dimensional index, in the order in which CUDA assigns threads
// to lanes.
VERBENA_DEVICE uint32_t flatten(uint32_t x, uint32_t y, uint32_t z, uint32_t width, uint32_t height) {
  return x + width * (y + height * z);
}

}  // namespace detail
#endif

// Returns `value`, and makes the compiler compute it at this point and keep it in a register. Without this
// call, the compiler may move the computation to the point where the value is used, which may be after a
// wait.
template <typename T>
VERBENA_DEVICE T keep(T value) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8);
#if VERBENA_PTX
  if constexpr (sizeof(T) == 4) {
    auto bits = __builtin_bit_cast(uint32_t, value);
    asm volatile("" : "+r"(bits));
    return __builtin_bit_cast(T, bits);
  } else {
    auto bits = __builtin_bit_cast(uint64_t, value);
    asm volatile("" : "+l"(bits));
    return __builtin_bit_cast(T, bits);
  }
#else
  return value;
#endif
}

VERBENA_DEVICE uint32_t thread_index() {
  uint32_t result = 0;
#if VERBENA_EMULATED
  result = emulation::index().thread;
#elif VERBENA_PTX
  uint32_t x, y, z, width, height;
  VERBENA_READ(x, "tid.x");
  VERBENA_READ(y, "tid.y");
  VERBENA_READ(z, "tid.z");
  VERBENA_READ(width, "ntid.x");
  VERBENA_READ(height, "ntid.y");
  result = detail::flatten(x, y, z, width, height);
#endif
  return result;
}

VERBENA_DEVICE uint32_t threads_per_block() {
  uint32_t result = 0;
#if VERBENA_EMULATED
  result = emulation::index().threads_per_block;
#elif VERBENA_PTX
  uint32_t x, y, z;
  VERBENA_READ(x, "ntid.x");
  VERBENA_READ(y, "ntid.y");
  VERBENA_READ(z, "ntid.z");
  result = x * y * z;
#endif
  return result;
}

VERBENA_DEVICE uint32_t block_index() {
  uint32_t result = 0;
#if VERBENA_EMULATED
  result = emulation::index().block;
#elif VERBENA_PTX
  uint32_t x, y, z, width, height;
  VERBENA_READ(x, "ctaid.x");
  VERBENA_READ(y, "ctaid.y");
  VERBENA_READ(z, "ctaid.z");
  VERBENA_READ(width, "nctaid.x");
  VERBENA_READ(height, "nctaid.y");
  result = detail::flatten(x, y, z, width, height);
#endif
  return result;
}

VERBENA_DEVICE uint32_t blocks_per_grid() {
  uint32_t result = 0;
#if VERBENA_EMULATED
  result = emulation::index().blocks_per_grid;
#elif VERBENA_PTX
  uint32_t x, y, z;
  VERBENA_READ(x, "nctaid.x");
  VERBENA_READ(y, "nctaid.y");
  VERBENA_READ(z, "nctaid.z");
  result = x * y * z;
#endif
  return result;
}

// Returns the number of blocks in this block's cluster. The blocks of a cluster run at the same time and can
// access each other's shared memory (sm_90). On older GPUs, and in kernels that are launched without
// clusters, each block is a cluster of one.
VERBENA_DEVICE uint32_t blocks_per_cluster() {
  uint32_t result = 1;
#if VERBENA_EMULATED
  result = emulation::index().blocks_per_cluster;
#elif VERBENA_PTX && VERBENA_ARCH >= 900
  VERBENA_READ(result, "cluster_nctarank");
#endif
  return result;
}

// Returns the index of this block in its cluster.
VERBENA_DEVICE uint32_t block_in_cluster() {
  uint32_t result = 0;
#if VERBENA_EMULATED
  result = emulation::index().block % emulation::index().blocks_per_cluster;
#elif VERBENA_PTX && VERBENA_ARCH >= 900
  VERBENA_READ(result, "cluster_ctarank");
#endif
  return result;
}

VERBENA_DEVICE uint32_t lane() {
  uint32_t result = 0;
#if VERBENA_EMULATED
  result = emulation::index().thread % kWarpLanes;
#elif VERBENA_PTX
  VERBENA_READ(result, "laneid");
#endif
  return result;
}

// Waits for all threads of the block. The lanes of a warp must call this function together.
VERBENA_DEVICE void sync_block() {
#if VERBENA_EMULATED
  emulation::sync_block();
#elif VERBENA_PTX
  asm volatile("barrier.sync.aligned 0;" ::: "memory");
#endif
}

// The two halves of a barrier for all threads of the cluster. The lanes of a warp must call each half
// together. Everything that a thread has stored before the first half is visible to all threads after the
// second half.
VERBENA_DEVICE void arrive_at_cluster() {
#if VERBENA_PTX && VERBENA_ARCH >= 900
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}
// Like arrive_at_cluster(), but does not make the thread's stores visible.
VERBENA_DEVICE void arrive_at_cluster_relaxed() {
#if VERBENA_PTX && VERBENA_ARCH >= 900
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
}
VERBENA_DEVICE void await_cluster() {
#if VERBENA_EMULATED
  emulation::sync_cluster();  // does the work of both halves
#elif VERBENA_PTX && VERBENA_ARCH >= 900
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#else
  sync_block();
#endif
}

// Returns the address of the same variable in the shared memory of another block of the cluster. Sync the
// cluster before the first access, so that every block has started. Sync the cluster again after the last
// access, so that no block exits while other blocks access its memory.
template <typename T>
VERBENA_DEVICE T* find_in_cluster(T* address, uint32_t block) {
#if VERBENA_EMULATED
  return static_cast<T*>(emulation::find_in_cluster(address, block));
#elif VERBENA_PTX && VERBENA_ARCH >= 900
  uint64_t result;
  asm("mapa.u64 %0, %1, %2;" : "=l"(result) : "l"(address), "r"(block));
  return reinterpret_cast<T*>(result);
#else
  (void)block;
  return address;
#endif
}

// Waits until `count_threads` threads have made this call. The threads must form whole warps, and the lanes
// of a warp make the call together.
// @param barrier  0 to 15; sync_block() uses 0
VERBENA_DEVICE void sync_named(int barrier, int count_threads) {
#if VERBENA_EMULATED
  emulation::sync_named(barrier, count_threads);
#elif VERBENA_PTX
  asm volatile("barrier.sync.aligned %0, %1;" ::"r"(barrier), "r"(count_threads) : "memory");
#else
  (void)barrier, (void)count_threads;
#endif
}

#if VERBENA_EMULATED
namespace detail {

// Combines votes in one word per barrier. `meet` waits in the barrier. The first call of `meet` makes sure
// that all threads have read the votes of the previous round.
template <typename Meet>
VERBENA_DEVICE bool meet_and_vote(int barrier, bool vote, const Meet& meet) {
  static const char key = 0;
  auto* const words = static_cast<uint32_t*>(emulation::shared_memory(&key, 16 * sizeof(uint32_t), 4));
  const uint32_t no = 0, yes = 1;
  uint32_t result = 0;
  meet();
  emulation::store(words + barrier, &no, sizeof no, Order::kRelaxed, Scope::kBlock);
  meet();
  if (vote) emulation::store(words + barrier, &yes, sizeof yes, Order::kRelaxed, Scope::kBlock);
  meet();
  emulation::load(&result, words + barrier, sizeof result, Order::kRelaxed, Scope::kBlock);
  return result != 0;
}

}  // namespace detail
#endif

// Syncs like sync_block(), and returns whether any thread voted true.
VERBENA_DEVICE bool sync_block_any(bool vote) {
#if VERBENA_EMULATED
  return detail::meet_and_vote(0, vote, [] { sync_block(); });
#elif VERBENA_PTX
  uint32_t result;
  asm volatile(
      "{\n\t.reg .pred p, q;\n\tsetp.ne.u32 p, %1, 0;\n\t"
      "barrier.red.or.pred.aligned q, 0, p;\n\tselp.u32 %0, 1, 0, q;\n\t}"
      : "=r"(result)
      : "r"(static_cast<uint32_t>(vote))
      : "memory");
  return result != 0;
#else
  return vote;
#endif
}

// Syncs like sync_named(), and returns whether any thread voted true.
VERBENA_DEVICE bool sync_named_any(int barrier, int count_threads, bool vote) {
#if VERBENA_EMULATED
  return detail::meet_and_vote(barrier, vote, [&] { sync_named(barrier, count_threads); });
#elif VERBENA_PTX
  uint32_t result;
  asm volatile(
      "{\n\t.reg .pred p, q;\n\tsetp.ne.u32 p, %3, 0;\n\t"
      "barrier.red.or.pred.aligned q, %1, %2, p;\n\tselp.u32 %0, 1, 0, q;\n\t}"
      : "=r"(result)
      : "r"(barrier), "r"(count_threads), "r"(static_cast<uint32_t>(vote))
      : "memory");
  return result != 0;
#else
  (void)barrier, (void)count_threads;
  return vote;
#endif
}

// In the functions from sync_warp() to elect_one(), `lanes` is a mask of lanes. All lanes of the mask must
// make the call, with the same mask.

// Waits until all lanes of the mask have made this call.
VERBENA_DEVICE void sync_warp(uint32_t lanes = kFullWarp) {
#if VERBENA_EMULATED
  emulation::sync_warp(lanes);
#elif VERBENA_PTX
  asm volatile("bar.warp.sync %0;" ::"r"(lanes) : "memory");
#else
  (void)lanes;
#endif
}

// Returns the `value` that lane source_lane has passed. This lane must be in the mask.
VERBENA_DEVICE uint32_t shuffle(uint32_t lanes, uint32_t value, int source_lane) {
  uint32_t result = 0;
#if VERBENA_EMULATED
  result = emulation::shuffle(lanes, value, source_lane);
#elif VERBENA_PTX
  asm volatile("shfl.sync.idx.b32 %0, %1, %2, 0x1f, %3;"
               : "=r"(result)
               : "r"(value), "r"(source_lane), "r"(lanes));
#else
  (void)lanes, (void)value, (void)source_lane;
#endif
  return result;
}

// Returns the mask of the lanes that vote true.
VERBENA_DEVICE uint32_t ballot(uint32_t lanes, bool vote) {
  uint32_t result = 0;
#if VERBENA_EMULATED
  result = emulation::ballot(lanes, vote);
#elif VERBENA_PTX
  asm volatile(
      "{\n\t.reg .pred p;\n\tsetp.ne.u32 p, %1, 0;\n\t"
      "vote.sync.ballot.b32 %0, p, %2;\n\t}"
      : "=r"(result)
      : "r"(static_cast<uint32_t>(vote)), "r"(lanes));
#else
  (void)lanes, (void)vote;
#endif
  return result;
}

// Returns the bitwise OR of the values of all lanes of the warp. All lanes must make the call.
VERBENA_DEVICE uint32_t combine_bits(uint32_t bits) {
#if VERBENA_PTX && VERBENA_ARCH >= 800
  uint32_t result;
  asm volatile("redux.sync.or.b32 %0, %1, 0xffffffff;" : "=r"(result) : "r"(bits));
  return result;
#else
  for (uint32_t step = 1; step < kWarpLanes; step *= 2)
    bits |= shuffle(kFullWarp, bits, static_cast<int>(lane() ^ step));
  return bits;
#endif
}

// Returns the inclusive prefix sum over the lanes of a warp. All lanes must make the call.
VERBENA_DEVICE uint32_t add_up_lanes(uint32_t value, uint32_t lane) {
  VERBENA_UNROLL
  for (int distance = 1; distance < kWarpLanes; distance *= 2) {
    const int from = static_cast<int>(lane) - distance;
    const uint32_t below = shuffle(kFullWarp, value, from < 0 ? 0 : from);
    if (from >= 0) value += below;
  }
  return value;
}

// Returns true in exactly one lane, the lowest lane of the mask. On sm_90, the function uses an instruction
// that tells the compiler that only one lane continues.
VERBENA_DEVICE bool elect_one(uint32_t lanes = kFullWarp) {
#if VERBENA_PTX && VERBENA_ARCH >= 900
  uint32_t elected;
  asm volatile(
      "{\n\t.reg .pred p;\n\telect.sync _|p, %1;\n\t"
      "selp.u32 %0, 1, 0, p;\n\t}"
      : "=r"(elected)
      : "r"(lanes));
  return elected != 0;
#else
  return (lanes & ((1u << lane()) - 1)) == 0;
#endif
}

// Programmatic dependent launch (sm_90). wait_for_earlier_grids() returns when the earlier grids of the
// stream have ended and their writes are visible. Before this call, a kernel must not write memory, and must
// not read memory that earlier grids may write. let_next_grid_start() lets the next grid of the stream start
// once every block has called this function or has ended. On older GPUs, and without programmatic dependent
// launch, both functions do nothing, because a grid starts only after the earlier grids have ended.
VERBENA_DEVICE void wait_for_earlier_grids() {
#if VERBENA_PTX && VERBENA_ARCH >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#elif VERBENA_EMULATED
  emulation::wait_for_earlier_grids();
#endif
}
VERBENA_DEVICE void let_next_grid_start() {
#if VERBENA_PTX && VERBENA_ARCH >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#elif VERBENA_EMULATED
  emulation::let_next_grid_start();
#endif
}

// Returns the time in nanoseconds of a clock that all SMs share. The clock never goes back and has a
// resolution of 32 ns to 1 us.
VERBENA_DEVICE uint64_t clock_ns() {
  uint64_t result = 0;
#if VERBENA_EMULATED
  result = emulation::clock_ns();
#elif VERBENA_PTX
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(result)::"memory");
#endif
  return result;
}

// Pauses this warp for about `nanoseconds` ns, so that other warps of the SM can run. The pause may take
// twice as long, but at most 1 ms.
VERBENA_DEVICE void pause(uint32_t nanoseconds) {
#if VERBENA_EMULATED
  emulation::pause(nanoseconds);
#elif VERBENA_PTX
  asm volatile("nanosleep.u32 %0;" ::"r"(nanoseconds) : "memory");
#else
  (void)nanoseconds;
#endif
}

// Waits for the earlier kernels of the stream. A kernel calls this function object before its first access to
// memory that these kernels may write or read. With programmatic dependent launch, the kernel's work before
// this call overlaps with the earlier kernels.
struct GridStart {
  uint32_t programmatic_launch = 0;  // 1 if the stream's next kernel may start early
  // For tests: pauses before the wait for earlier grids, and after the trigger.
  uint32_t pause_before_ns = 0, pause_after_ns = 0;

  VERBENA_DEVICE void operator()() const {
    const uint32_t lets = keep(programmatic_launch), after_ns = keep(pause_after_ns);
    // Compilers do not move computations across this branch.
    if (pause_before_ns != 0) pause(pause_before_ns);
    wait_for_earlier_grids();
    if (lets != 0) let_next_grid_start();
    if (after_ns != 0) pause(after_ns);
  }
};

// Returns the low word of (high:low) >> (bits % 32).
VERBENA_DEVICE uint32_t shift_right_wrap(uint32_t low, uint32_t high, uint32_t bits) {
#if VERBENA_PTX
  uint32_t result;
  asm("shf.r.wrap.b32 %0, %1, %2, %3;" : "=r"(result) : "r"(low), "r"(high), "r"(bits));
  return result;
#else
  return static_cast<uint32_t>((static_cast<uint64_t>(high) << 32 | low) >> (bits % 32));
#endif
}

// Selects four of the eight bytes of (high:low). Hex digit i of `selector`, 0 to 7, is the index of the byte
// that becomes byte i of the result.
VERBENA_DEVICE uint32_t permute_bytes(uint32_t low, uint32_t high, uint32_t selector) {
  uint32_t result = 0;
#if VERBENA_PTX
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(result) : "r"(low), "r"(high), "r"(selector));
#else
  const uint64_t both = static_cast<uint64_t>(high) << 32 | low;
  for (uint32_t i = 0; i < 4; ++i)
    result |= static_cast<uint32_t>(both >> 8 * (selector >> 4 * i & 7) & 0xff) << 8 * i;
#endif
  return result;
}

#if VERBENA_PTX
#undef VERBENA_READ
#endif

}  // namespace verbena::device

#endif
