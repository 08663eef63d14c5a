// Network backend over NVSHMEM 3. The heap is part of NVSHMEM's symmetric heap (nvshmem_align), at the same
// offset on every PE. World ranks are PEs. The host must initialise the device library in the module
// (nvshmemx_cumodule_init) before the first launch.
//
// NVSHMEM waits without a timeout, so get() and complete() do not return if a peer has exited.
//
// By default this header includes NVSHMEM's headers. If CUDA's headers are not available, or if
// VERBENA_NVSHMEM_BY_NAME is defined, this header declares NVSHMEM's device functions itself, and the linker
// finds these functions by name.
#ifndef VERBENA_DEVICE_BACKENDS_NVSHMEM_CUH
#define VERBENA_DEVICE_BACKENDS_NVSHMEM_CUH

#include "verbena/device/symm.cuh"
#if VERBENA_FREESTANDING || defined(VERBENA_NVSHMEM_BY_NAME)
extern "C" {
#define VERBENA_NVSHMEM_FUNCTION __attribute__((device))
VERBENA_NVSHMEM_FUNCTION void nvshmem_putmem_nbi(void* destination, const void* source, size_t length_bytes,
                                                 int pe);
VERBENA_NVSHMEM_FUNCTION void nvshmem_putmem_signal_nbi(void* destination, const void* source,
                                                        size_t length_bytes, uint64_t* signal, uint64_t value,
                                                        int operation, int pe);
VERBENA_NVSHMEM_FUNCTION void nvshmem_getmem(void* destination, const void* source, size_t length_bytes,
                                             int pe);
VERBENA_NVSHMEM_FUNCTION void nvshmem_getmem_nbi(void* destination, const void* source, size_t length_bytes,
                                                 int pe);
VERBENA_NVSHMEM_FUNCTION void nvshmem_uint64_atomic_add(uint64_t* destination, uint64_t value, int pe);
VERBENA_NVSHMEM_FUNCTION uint64_t nvshmem_uint64_atomic_fetch_add(uint64_t* destination, uint64_t value,
                                                                  int pe);
VERBENA_NVSHMEM_FUNCTION uint64_t nvshmem_uint64_atomic_compare_swap(uint64_t* destination, uint64_t expected,
                                                                     uint64_t desired, int pe);
VERBENA_NVSHMEM_FUNCTION void nvshmem_uint64_p(uint64_t* destination, uint64_t value, int pe);
VERBENA_NVSHMEM_FUNCTION uint64_t nvshmem_uint64_g(const uint64_t* source, int pe);
VERBENA_NVSHMEM_FUNCTION void nvshmemx_signal_op(uint64_t* signal, uint64_t value, int operation, int pe);
VERBENA_NVSHMEM_FUNCTION void nvshmem_fence();
VERBENA_NVSHMEM_FUNCTION void nvshmem_quiet();
#undef VERBENA_NVSHMEM_FUNCTION
}
#else
#include <nvshmem.h>
#include <nvshmemx.h>
#endif

namespace verbena {

struct NvshmemSymmContext : SymmContext {};

}  // namespace verbena

namespace verbena::device {

template <>
struct SymmNetwork<NvshmemSymmContext> {
  using Context = NvshmemSymmContext;

  static constexpr bool kGets = true;
  static constexpr bool kUpdates = true;
  static constexpr bool kRows = false;
  static constexpr bool kPieces = false;
  static constexpr bool kArrivesAfterPuts = true;

  VERBENA_DEVICE static constexpr bool serves(int32_t type) { return type == kSymmNvshmem; }
  VERBENA_DEVICE static bool is_there(const Context&) { return true; }

  VERBENA_DEVICE static WaitResult put(const Context& context, int32_t peer, void* destination,
                                       const void* source, uint64_t length_bytes, SymmQueue = {}) {
    fence<Order::kAcquireRelease, Scope::kSystem>();
    nvshmem_putmem_nbi(destination, source, length_bytes, find_pe(context, peer));
    return WaitResult::kReached;
  }
  VERBENA_DEVICE static WaitResult put_signal(const Context& context, int32_t peer, void* destination,
                                              const void* source, uint64_t length_bytes, uint32_t number,
                                              uint64_t value, SymmSignalOperation operation, SymmQueue) {
    begin_signal();
    nvshmem_putmem_signal_nbi(destination, source, length_bytes, context.remote_signals + number,
                              find_operand(context, peer, number, value, operation), name(operation),
                              find_pe(context, peer));
    return WaitResult::kReached;
  }
  VERBENA_DEVICE static WaitResult signal(const Context& context, int32_t peer, uint32_t number,
                                          uint64_t value, SymmSignalOperation operation, SymmQueue) {
    begin_signal();
    nvshmemx_signal_op(context.remote_signals + number, find_operand(context, peer, number, value, operation),
                       name(operation), find_pe(context, peer));
    return WaitResult::kReached;
  }
  VERBENA_DEVICE static WaitResult get(const Context& context, int32_t peer, void* destination,
                                       const void* source, uint64_t length_bytes, SymmQueue) {
    nvshmem_getmem(destination, source, length_bytes, find_pe(context, peer));
    return WaitResult::kReached;
  }
  // NVSHMEM does not report the completion of single requests, so await() waits for all requests.
  VERBENA_DEVICE static WaitResult get_async(const Context& context, int32_t peer, void* destination,
                                             const void* source, uint64_t length_bytes, SymmQueue,
                                             SymmRequest* asked) {
    nvshmem_getmem_nbi(destination, source, length_bytes, find_pe(context, peer));
    asked->after = 1;
    return WaitResult::kReached;
  }
  VERBENA_DEVICE static WaitResult await(const Context& context, const SymmRequest&) {
    return complete(context);
  }
  VERBENA_DEVICE static bool has_answered(const Context&, const SymmRequest&) { return false; }

  VERBENA_DEVICE static WaitResult write_word(const Context& context, int32_t peer, uint64_t* word,
                                              uint64_t value, SymmQueue) {
    begin_signal();
    nvshmem_uint64_p(word, value, find_pe(context, peer));
    return WaitResult::kReached;
  }
  VERBENA_DEVICE static WaitResult add_word(const Context& context, int32_t peer, uint64_t* word,
                                            uint64_t value, SymmQueue) {
    begin_signal();
    nvshmem_uint64_atomic_add(word, value, find_pe(context, peer));
    return WaitResult::kReached;
  }
  VERBENA_DEVICE static WaitResult fetch_add(const Context& context, int32_t peer, uint64_t* word,
                                             uint64_t value, SymmQueue, uint64_t* before) {
    begin_signal();
    *before = nvshmem_uint64_atomic_fetch_add(word, value, find_pe(context, peer));
    fence<Order::kAcquireRelease, Scope::kSystem>();
    return WaitResult::kReached;
  }
  VERBENA_DEVICE static bool swaps(const Context&) { return true; }
  VERBENA_DEVICE static WaitResult compare_swap(const Context& context, int32_t peer, uint64_t* word,
                                                uint64_t expected, uint64_t desired, SymmQueue,
                                                uint64_t* before) {
    begin_signal();
    *before = nvshmem_uint64_atomic_compare_swap(word, expected, desired, find_pe(context, peer));
    fence<Order::kAcquireRelease, Scope::kSystem>();
    return WaitResult::kReached;
  }

  VERBENA_DEVICE static WaitResult follow_all(const Context& context, int32_t, SymmQueue) {
    return complete(context);
  }
  VERBENA_DEVICE static WaitResult complete(const Context&) {
    nvshmem_quiet();
    return WaitResult::kReached;
  }
  VERBENA_DEVICE static WaitResult complete_at(const Context& context, int32_t) { return complete(context); }
  // Waits until all operations are complete, because NVSHMEM has no call that waits only until sources may be
  // reused.
  VERBENA_DEVICE static WaitResult release_sources(const Context& context) { return complete(context); }

  VERBENA_DEVICE static uint64_t read_signal(const Context& context, uint32_t number, int64_t delta_bytes) {
    return load_acquire<Scope::kSystem>(detail::shift(context.remote_signals + number, delta_bytes));
  }
  // Does nothing. When a rank sets one of its own signals, it changes only the word in SymmContext::signals,
  // so that the sum of the signal's two words has the right value.
  VERBENA_DEVICE static void reset_signal(const Context&, uint32_t) {}

  VERBENA_DEVICE static WaitResult arrive(const Context& context, int32_t peer, uint32_t barrier,
                                          uint64_t round) {
    fence<Order::kAcquireRelease, Scope::kSystem>();
    nvshmem_uint64_p(detail::find_arrival(context, barrier, context.team_rank), round,
                     find_pe(context, peer));
    return WaitResult::kReached;
  }
  VERBENA_DEVICE static bool has_arrived(const Context& context, int32_t peer, uint32_t barrier,
                                         uint64_t round) {
    return load_acquire<Scope::kSystem>(detail::find_arrival(context, barrier, peer)) >= round;
  }
  // Does nothing, because NVSHMEM may wait forever if the peer has exited. The waits of other members time
  // out on their own.
  VERBENA_DEVICE static void notify(const Context&, int32_t, uint64_t*, uint64_t) {}

 private:
  VERBENA_DEVICE static int find_pe(const Context& context, int32_t peer) {
    return static_cast<int>(detail::get_world_rank(context, peer));
  }
  // Orders this thread's earlier puts, and everything that the thread has observed, before the signal.
  VERBENA_DEVICE static void begin_signal() {
    fence<Order::kAcquireRelease, Scope::kSystem>();
    nvshmem_fence();
  }
  // Returns NVSHMEM's constant for the operation (NVSHMEM_SIGNAL_ADD or NVSHMEM_SIGNAL_SET).
  VERBENA_DEVICE static constexpr int name(SymmSignalOperation operation) {
    return operation == SymmSignalOperation::kAdd ? 10 : 9;
  }
  // Returns the operand of the NIC's update. When a signal is set, the sum of its two words must become
  // `value`, so the peer's word in SymmContext::signals is subtracted.
  VERBENA_DEVICE static uint64_t find_operand(const Context& context, int32_t peer, uint32_t number,
                                              uint64_t value, SymmSignalOperation operation) {
    if (operation == SymmSignalOperation::kAdd) return value;
    return value - nvshmem_uint64_g(context.signals + number, find_pe(context, peer));
  }
};

}  // namespace verbena::device

#endif
