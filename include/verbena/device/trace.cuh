// Records events of kernels with their times, in a ring in global memory. The host can read the ring, even
// after an abort. If the ring is null, a call only tests the pointer.
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
  // Events of symm_* calls, recorded if SymmContext::probes is set. `group` is the number of the barrier or
  // signal, and data[0] is the peer. data[1] is the number of bytes, the value, or the duration of the wait
  // in nanoseconds.
  kSymmPut,
  kSymmGet,
  kSymmSignal,
  kSymmUpdate,
  kSymmWaited,
  kSymmLate,
  kUser = 256
};

// To read an entry while kernels run, the host first reads time_ns with acquire order, and then the other
// members. After an acquire fence, it reads time_ns again. If time_ns is the same as before and not 0, the
// entry is complete.
struct alignas(16) TraceEntry {
  uint64_t time_ns;  // clock_ns(); 0 while the other members are being written
  uint16_t event;    // a TraceEvent, or an event of the application, kUser or above
  uint16_t group;
  uint32_t block;
  uint64_t data[2];
};
static_assert(sizeof(TraceEntry) == 32, "the host relies on this layout");

// The host allocates the ring in memory that host and GPU can access, and sets the memory to zero. `entries`
// is a power of two. If the ring wraps around while a thread is still writing an entry, the later event for
// the same entry is dropped. To clear the ring, the host must set the whole ring to zero, including `tail`,
// between launches.
struct alignas(16) TraceRing {
  uint64_t tail;  // number of events so far, including dropped events
  uint64_t entries;

  VERBENA_DEVICE TraceEntry* slots() { return reinterpret_cast<TraceEntry*>(this + 1); }
};

// Records an event. One thread makes the call. Any number of blocks may use one ring.
VERBENA_DEVICE void trace(TraceRing* ring, TraceEvent event, uint32_t group, uint64_t first = 0,
                          uint64_t second = 0) {
  if (ring == nullptr) return;
  const uint64_t position = fetch_add<Order::kRelaxed, Scope::kGpu>(&ring->tail, 1);
  TraceEntry* const entry = ring->slots() + (position & (ring->entries - 1));
  // The thread that replaces the time by 0 owns the entry until it writes the new time. If another thread
  // owns the entry, the event is dropped. In the first round through the ring, the time of an entry is 0
  // although nobody owns the entry.
  const uint64_t before_ns = exchange<Order::kRelaxed, Scope::kSystem>(&entry->time_ns, 0);
  if (before_ns == 0 && position >= ring->entries) return;
  // Orders the stores below after the exchange, so a reader that sees one of these stores also sees that
  // time_ns has changed. Also orders these stores after the stores of the entry's previous owner.
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
