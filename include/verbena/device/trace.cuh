// Records what a kernel did and when, in a ring in global memory that the host can read also after an abort.
// With a NULL ring a call costs one test.
#ifndef VERBENA_DEVICE_TRACE_CUH
#define VERBENA_DEVICE_TRACE_CUH

#include "verbena/device/atomic.cuh"
#include "verbena/device/machine.cuh"

namespace verbena::device {

enum class TraceEvent : uint16_t {
  kKernelStart = 1,
  kMessageReady,
  kMessagePlaced,
  kAborted,
  kError,
  kKernelEnd,
  // With SymmContext::probes: the group is the number of the barrier or signal; first is the peer; second is
  // bytes, the value, or the nanoseconds of the wait.
  kSymmPut,
  kSymmGet,
  kSymmSignal,
  kSymmUpdate,
  kSymmWaited,
  kSymmLate,
  kUser = 256
};

// To read entries while kernels run, the host reads the time with acquire, then the rest, and after an
// acquire fence the time again: if it has not changed and is not 0, the entry is complete. If a writer is
// overtaken by as many writers as there are entries, the later event of that entry is dropped.
struct alignas(16) TraceEntry {
  uint64_t time_ns;  // clock_ns(); 0 while the rest is written
  uint16_t event;    // a TraceEvent, or kUser and more
  uint16_t group;
  uint32_t block;
  uint64_t data[2];
};
static_assert(sizeof(TraceEntry) == 32, "the host reads entries by this layout");

// The host allocates it, zeroed, with `entries` a power of two, in memory that both sides reach. If the ring
// wraps around while a writer is still in its entry, the event that would use the same entry is dropped. A
// host that clears entries clears the whole ring, `tail` too, between launches.
struct alignas(16) TraceRing {
  uint64_t tail;  // events recorded so far, dropped ones too
  uint64_t entries;

  VERBENA_DEVICE TraceEntry* slots() { return reinterpret_cast<TraceEntry*>(this + 1); }
};

// Records an event, by one thread. Any number of blocks may use one ring.
VERBENA_DEVICE void trace(TraceRing* ring, TraceEvent event, uint32_t group, uint64_t first = 0,
                          uint64_t second = 0) {
  if (ring == nullptr) return;
  const uint64_t position = fetch_add<Order::kRelaxed, Scope::kGpu>(&ring->tail, 1);
  TraceEntry* const entry = ring->slots() + (position & (ring->entries - 1));
  // The thread that takes the old time away owns the entry until it writes the new one. The first writers
  // find no time.
  const uint64_t before_ns = exchange<Order::kRelaxed, Scope::kSystem>(&entry->time_ns, 0);
  if (before_ns == 0 && position >= ring->entries) return;
  // A reader that sees any of the rest sees that the old time is gone; and the writer before has ended.
  fence<Order::kAcquireRelease, Scope::kSystem>();
  store_relaxed<Scope::kSystem>(&entry->event, static_cast<uint16_t>(event));
  store_relaxed<Scope::kSystem>(&entry->group, static_cast<uint16_t>(group));
  store_relaxed<Scope::kSystem>(&entry->block, block_index());
  store_relaxed<Scope::kSystem>(&entry->data[0], first);
  store_relaxed<Scope::kSystem>(&entry->data[1], second);
  store_release<Scope::kSystem>(&entry->time_ns, clock_ns());
}

}  // namespace verbena::device

#endif
