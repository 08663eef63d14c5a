// What a kernel did and when, in a ring in global memory that the host reads, also after an abort. A null
// ring costs one test a call.
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
  // With SymmContext::probes: the group is the barrier's or signal's number, first the peer, second bytes,
  // the value, or the wait's nanoseconds.
  kSymmPut,
  kSymmGet,
  kSymmSignal,
  kSymmUpdate,
  kSymmWaited,
  kSymmLate,
  kUser = 256
};

// While kernels run the host reads the time, with acquire, then the rest, and after an acquire fence the time
// again: if it is the same and not 0, the entry is whole. Where a writer is passed by as many others as there
// are entries, while it writes, what the later one had to say of the same entry is left out.
struct alignas(16) TraceEntry {
  uint64_t time_ns;  // clock_ns(); 0 while the rest of the entry is written
  uint16_t event;    // a TraceEvent, or kUser and more
  uint16_t group;
  uint32_t block;
  uint64_t data[2];
};
static_assert(sizeof(TraceEntry) == 32, "the host reads entries by this layout");

// The host makes it, zeroed, with `entries` a power of two, in memory that both sides reach. If the ring goes
// round while a writer is still in its entry, the event that comes to the same entry is left out. A host that
// clears entries clears the whole ring, `tail` too, between launches.
struct alignas(16) TraceRing {
  uint64_t tail;  // events ever told, those left out too
  uint64_t entries;

  VERBENA_DEVICE TraceEntry* slots() { return reinterpret_cast<TraceEntry*>(this + 1); }
};

// One thread writes an entry. Any number of blocks may use one ring.
VERBENA_DEVICE void trace(TraceRing* ring, TraceEvent event, uint32_t group, uint64_t first = 0,
                          uint64_t second = 0) {
  if (ring == nullptr) return;
  const uint64_t position = fetch_add<Order::kRelaxed, Scope::kGpu>(&ring->tail, 1);
  TraceEntry* const entry = ring->slots() + (position & (ring->entries - 1));
  // The thread that takes the old time away owns the entry until it writes the new one. The first ones find
  // none.
  const uint64_t before_ns = exchange<Order::kRelaxed, Scope::kSystem>(&entry->time_ns, 0);
  if (before_ns == 0 && position >= ring->entries) return;
  // Who sees any of the rest sees that the old time is over; and the writer before has ended.
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
