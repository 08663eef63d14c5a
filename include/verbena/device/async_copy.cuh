// Asynchronous copies between global and shared memory. cp.async (sm_80) copies 16 bytes per thread.
// cp.async.bulk (sm_90) is a bulk copy, which a single thread starts. An mbarrier tracks the completion of
// bulk copies to shared memory. Bulk groups track the completion of bulk copies to global memory. On older
// architectures, ptxas rejects these instructions. In the emulation, a bulk copy is complete when the
// function returns; cp.async is not emulated.
//
// Addresses and lengths of bulk copies are multiples of 16 bytes. Parameters named `shared` are generic
// addresses of this block's shared memory; other pointers point to global memory.
#ifndef VERBENA_DEVICE_ASYNC_COPY_CUH
#define VERBENA_DEVICE_ASYNC_COPY_CUH

#include "verbena/device/platform.cuh"
#if VERBENA_EMULATED
#include "verbena/device/emulation.h"
#endif

namespace verbena::device {

#if VERBENA_PTX

// An mbarrier, in shared memory. A phase ends when count_arrivals threads and all expected bytes have
// arrived. To wait for the end of a phase, pass the parity of the phase, which is 0 for the first phase.
struct alignas(8) CopyBarrier {
  uint64_t word;
};

// Converts a generic address to an address in the shared state space, which the .shared forms of instructions
// need.
VERBENA_DEVICE uint32_t get_shared_address(const void* shared) {
  uint32_t result;
  asm("{\n\t.reg .u64 address;\n\tcvta.to.shared.u64 address, %1;\n\tcvt.u32.u64 %0, address;\n\t}"
      : "=r"(result)
      : "l"(shared));
  return result;
}

// Initialises the barrier. One thread makes the call; the block must sync before other threads use the
// barrier.
VERBENA_DEVICE void init_copy_barrier(CopyBarrier* barrier, uint32_t count_arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(get_shared_address(barrier)), "r"(count_arrivals)
               : "memory");
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// Destroys the barrier, so that its memory may be reused. No thread may still be waiting on it.
VERBENA_DEVICE void destroy_copy_barrier(CopyBarrier* barrier) {
  asm volatile("mbarrier.inval.shared.b64 [%0];" ::"r"(get_shared_address(barrier)) : "memory");
}

// Arrives at the barrier (a release at block scope), and adds length_bytes to the number of bytes that the
// phase expects. length_bytes is at most 2^20 - 1.
VERBENA_DEVICE void arrive_expecting(CopyBarrier* barrier, uint32_t length_bytes) {
  asm volatile(
      "mbarrier.arrive.expect_tx.release.cta.shared.b64 _, [%0], %1;" ::"r"(get_shared_address(barrier)),
      "r"(length_bytes)
      : "memory");
}

VERBENA_DEVICE void arrive(CopyBarrier* barrier) {
  asm volatile("mbarrier.arrive.release.cta.shared.b64 _, [%0];" ::"r"(get_shared_address(barrier))
               : "memory");
}

// Returns whether the phase with this parity has ended. If so, the bytes that were copied in the phase are
// visible to the caller (acquire at block scope). The call may sleep for a limited time before it returns
// false.
VERBENA_DEVICE bool try_wait_parity(const CopyBarrier* barrier, uint32_t parity) {
  uint32_t is_over;
  asm volatile(
      "{\n\t.reg .pred p;\n\t"
      "mbarrier.try_wait.parity.acquire.cta.shared.b64 p, [%1], %2;\n\tselp.u32 %0, 1, 0, p;\n\t}"
      : "=r"(is_over)
      : "r"(get_shared_address(barrier)), "r"(parity)
      : "memory");
  return is_over != 0;
}

// Starts a bulk copy. One thread makes the call. The barrier counts the arriving bytes in its current phase.
VERBENA_DEVICE void copy_bulk_global_to_shared(void* shared, const void* global, uint32_t length_bytes,
                                               CopyBarrier* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
          get_shared_address(shared)),
      "l"(global), "r"(length_bytes), "r"(get_shared_address(barrier))
      : "memory");
}

// Starts a bulk copy, which belongs to the bulk group that the thread commits next. One thread makes the
// call. If threads have written the bytes, call fence_async_proxy() first.
VERBENA_DEVICE void copy_bulk_shared_to_global(void* global, const void* shared, uint32_t length_bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(global),
               "r"(get_shared_address(shared)), "r"(length_bytes)
               : "memory");
}

VERBENA_DEVICE void commit_bulk_group() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// Waits until at most count_pending of this thread's latest bulk groups are in flight. The bytes of all
// earlier groups are then written and visible to the thread.
template <int count_pending>
VERBENA_DEVICE void wait_bulk_groups() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(count_pending) : "memory");
}

// Waits like wait_bulk_groups(), but only until the sources of all earlier groups may be overwritten.
template <int count_pending>
VERBENA_DEVICE void wait_bulk_groups_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(count_pending) : "memory");
}

// Order this thread's earlier accesses to shared memory, or to all memory, before the accesses of bulk copies
// that the thread starts later.
VERBENA_DEVICE void fence_async_proxy_shared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
VERBENA_DEVICE void fence_async_proxy() {
  asm volatile("fence.proxy.async;" ::: "memory");
}

// Starts a copy of 16 bytes that bypasses L1. Both addresses must be multiples of 16.
VERBENA_DEVICE void copy_async_global_to_shared(void* shared, const void* global) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(get_shared_address(shared)), "l"(global)
               : "memory");
}

VERBENA_DEVICE void commit_async_group() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits until at most count_pending of this thread's latest groups are in flight. The bytes of all earlier
// groups are then visible to this thread, and to other threads after a barrier.
template <int count_pending>
VERBENA_DEVICE void wait_async_groups() {
  asm volatile("cp.async.wait_group %0;" ::"n"(count_pending) : "memory");
}

#else

// In the emulation, `word` counts the phases that have ended. In the host pass of nvcc, the following
// functions are only compiled and never called.
struct alignas(8) CopyBarrier {
  uint64_t word;
};

#if VERBENA_EMULATED
namespace detail {

VERBENA_DEVICE void copy_units(void* to, const void* from, uint32_t length_bytes) {
  for (uint32_t done = 0; done < length_bytes; done += sizeof(Vector16)) {
    Vector16 unit;
    emulation::load(&unit, static_cast<const char*>(from) + done, sizeof(unit), Order::kWeak,
                    Scope::kThreads);
    emulation::store(static_cast<char*>(to) + done, &unit, sizeof(unit), Order::kWeak, Scope::kThreads);
  }
}

}  // namespace detail
#endif

VERBENA_DEVICE void init_copy_barrier(CopyBarrier* barrier, uint32_t) {
  barrier->word = 0;
}
VERBENA_DEVICE void destroy_copy_barrier(CopyBarrier* barrier) {
  barrier->word = 0;
}
VERBENA_DEVICE void arrive_expecting(CopyBarrier*, uint32_t) {}

VERBENA_DEVICE bool try_wait_parity(const CopyBarrier* barrier, uint32_t parity) {
#if VERBENA_EMULATED
  uint64_t phases = 0;
  emulation::load(&phases, &barrier->word, sizeof(phases), Order::kAcquire, Scope::kBlock);
  return phases % 2 != parity;
#else
  return barrier->word % 2 != parity;
#endif
}

VERBENA_DEVICE void copy_bulk_global_to_shared(void* shared, const void* global, uint32_t length_bytes,
                                               CopyBarrier* barrier) {
#if VERBENA_EMULATED
  detail::copy_units(shared, global, length_bytes);
  emulation::update(&barrier->word, Operation::kAdd, 1, 0, sizeof(barrier->word), Order::kRelease,
                    Scope::kBlock);
#else
  (void)shared, (void)global, (void)length_bytes, (void)barrier;
#endif
}

VERBENA_DEVICE void copy_bulk_shared_to_global(void* global, const void* shared, uint32_t length_bytes) {
#if VERBENA_EMULATED
  detail::copy_units(global, shared, length_bytes);
#else
  (void)global, (void)shared, (void)length_bytes;
#endif
}

VERBENA_DEVICE void commit_bulk_group() {}
template <int count_pending>
VERBENA_DEVICE void wait_bulk_groups() {}
template <int count_pending>
VERBENA_DEVICE void wait_bulk_groups_read() {}
VERBENA_DEVICE void fence_async_proxy_shared() {}
VERBENA_DEVICE void fence_async_proxy() {}

#endif

}  // namespace verbena::device

#endif
