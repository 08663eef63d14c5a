// The thread's place, barriers, warp operations, time and shared memory of verbena/device/emulation.h.
#include <bit>

#include "sanitizer.h"
#include "scheduler.h"
#include "shared_memory.h"
#include "verbena/device/emulation.h"
#include "world.h"

namespace verbena::emulator {

namespace {

Scheduler& scheduler() {
  return *Scheduler::active();
}

Block& own_block(const char* operation) {
  Fiber& self = scheduler().running();
  if (self.block == nullptr) fail(std::string("a host function calls ") + operation);
  return *self.block;
}

// Waits until `expected` threads came; true for the last, which then still holds what the others read.
// `orders_memory`: what came before any arrival is before what follows any leaving.
template <typename OnComplete>
void gather(Gathering& gathering, int expected, bool orders_memory, const OnComplete& on_complete) {
  Fiber& self = scheduler().running();
  const uint64_t generation = gathering.generation;
  if (orders_memory) release_clock(gathering.clock(generation));
  gathering.expected = expected;
  if (++gathering.arrived < expected) {
    self.next_waiting = gathering.last_waiting;
    gathering.last_waiting = &self;
    scheduler().wait();
  } else {
    on_complete();
    Fiber* waiting = gathering.last_waiting;
    gathering.last_waiting = nullptr;
    gathering.arrived = 0;
    ++gathering.generation;
    scheduler().note_progress();
    for (; waiting != nullptr; waiting = waiting->next_waiting) scheduler().wake(*waiting);
  }
  if (orders_memory) acquire_clock(gathering.clock(generation));
}

WarpGathering& find_gathering(Warp& warp, const char* operation, uint32_t lanes) {
  for (WarpGathering& entry : warp.gatherings) {
    if (entry.operation == operation && entry.lanes == lanes) return entry;
  }
  for (WarpGathering& entry : warp.gatherings) {
    if (entry.operation != nullptr) continue;
    entry.operation = operation;
    entry.lanes = lanes;
    return entry;
  }
  fail("more operations of a warp under way than it has lanes");
}

// Every lane of the mask brings a value; `resolve(values, lane)` is what a lane leaves with.
template <typename Resolve>
uint32_t meet_lanes(const char* operation, uint32_t lanes, uint32_t value, bool orders_memory,
                    const Resolve& resolve) {
  Block& block = own_block(operation);
  scheduler().count_step(operation, nullptr, lanes);
  const uint32_t thread = scheduler().running().index.thread;
  const uint32_t lane = thread % device::kWarpLanes;
  const uint32_t warp_threads = block.threads - (thread - lane);
  const uint32_t existing = warp_threads >= 32 ? device::kFullWarp : (1u << warp_threads) - 1;
  if ((lanes >> lane & 1) == 0) fail(std::string(operation) + ": the caller is not among the lanes it names");
  if ((lanes & ~existing) != 0) fail(std::string(operation) + " names lanes that the block does not have");
  WarpGathering& entry = find_gathering(block.warps[thread / device::kWarpLanes], operation, lanes);
  entry.values[lane] = value;
  gather(entry.gathering, std::popcount(lanes), orders_memory, [&] {
    for (Fiber* other = entry.gathering.last_waiting; other != nullptr; other = other->next_waiting) {
      other->warp_result = resolve(entry.values, *other);
    }
    scheduler().running().warp_result = resolve(entry.values, scheduler().running());
    entry.operation = nullptr;
  });
  return scheduler().running().warp_result;
}

void meet_block(int barrier, int count_threads, const char* operation) {
  Block& block = own_block(operation);
  scheduler().count_step("barrier", nullptr, barrier);
  if (barrier < 0 || barrier >= Block::kBarriers) fail("there is no barrier " + std::to_string(barrier));
  Gathering& gathering = block.barriers[static_cast<size_t>(barrier)];
  if (gathering.arrived > 0 && gathering.expected != count_threads) {
    fail("barrier " + std::to_string(barrier) + ": " + std::to_string(count_threads) +
         " threads expected here, " + std::to_string(gathering.expected) + " by those who came before");
  }
  if (count_threads <= 0 || static_cast<uint32_t>(count_threads) > block.threads) {
    fail("barrier " + std::to_string(barrier) + " of " + std::to_string(count_threads) +
         " threads in a block of " + std::to_string(block.threads));
  }
  gather(gathering, count_threads, true, [] {});
}

}  // namespace

}  // namespace verbena::emulator

namespace verbena::device::emulation {

using emulator::Scheduler;

const Index& index() {
  return Scheduler::active()->running().index;
}

void sync_block() {
  emulator::meet_block(0, static_cast<int>(index().threads_per_block), "sync_block");
}

void sync_cluster() {
  emulator::Cluster& cluster = *emulator::own_block("sync_cluster").cluster;
  emulator::scheduler().count_step("cluster", nullptr, 0);
  emulator::gather(cluster.barrier, static_cast<int>(index().threads_per_block * index().blocks_per_cluster),
                   true, [] {});
}

void sync_named(int barrier, int count_threads) {
  if (count_threads % kWarpLanes != 0) emulator::fail("a barrier's count is a multiple of 32");
  emulator::meet_block(barrier, count_threads, "sync_named");
}

void sync_warp(uint32_t lanes) {
  emulator::meet_lanes("sync_warp", lanes, 0, true, [](const auto&, const auto&) { return 0u; });
}

// Neither orders memory, as on the GPU.
uint32_t shuffle(uint32_t lanes, uint32_t value, int source_lane) {
  if (source_lane < 0 || source_lane >= kWarpLanes || (lanes >> source_lane & 1) == 0) {
    emulator::fail("shuffle from lane " + std::to_string(source_lane) + ", which takes no part");
  }
  Scheduler::active()->running().shuffle_source = static_cast<uint32_t>(source_lane);
  return emulator::meet_lanes("shuffle", lanes, value, false, [](const auto& values, const auto& fiber) {
    return values[fiber.shuffle_source];
  });
}

uint32_t ballot(uint32_t lanes, bool vote) {
  return emulator::meet_lanes("ballot", lanes, vote ? 1 : 0, false, [&](const auto& values, const auto&) {
    uint32_t result = 0;
    for (uint32_t lane = 0; lane < kWarpLanes; ++lane) {
      if ((lanes >> lane & 1) != 0) result |= values[lane] << lane;
    }
    return result;
  });
}

size_t find_multicast(const void* address, size_t length_bytes, void** places, size_t most) {
  const auto at = reinterpret_cast<uint64_t>(address);
  if (at % length_bytes != 0) emulator::fail("a misaligned multicast access");
  for (const emulator::MulticastRange& range : emulator::scheduler().multicasts()) {
    if (at < range.begin || at - range.begin + length_bytes > range.length_bytes) continue;
    const size_t count = range.places.size() < most ? range.places.size() : most;
    for (size_t i = 0; i < count; ++i) places[i] = range.places[i] + (at - range.begin);
    return count;
  }
  emulator::fail("no multicast address");
}

uint64_t clock_ns() {
  Scheduler::active()->step("reads the clock");
  return Scheduler::active()->clock_ns();
}

void pause(uint32_t nanoseconds) {
  Scheduler::active()->sleep(nanoseconds);
}

void* find_in_cluster(const void* address, uint32_t block) {
  emulator::Block& own = emulator::own_block("find_in_cluster");
  if (block >= own.cluster->blocks.size())
    emulator::fail("there is no block " + std::to_string(block) + " in the cluster");
  const char* const at = static_cast<const char*>(address);
  for (const emulator::SharedPiece& piece : own.shared) {
    if (at < piece.start || at >= piece.start + piece.length_bytes) continue;
    for (const emulator::SharedPiece& theirs : own.cluster->blocks[block]->shared)
      if (theirs.key == piece.key) return theirs.start + (at - piece.start);
    emulator::fail("shared memory of a block of the cluster that has not begun: await_cluster() first");
  }
  emulator::fail("no address of shared memory");
}

void* shared_memory(const void* key, size_t length_bytes, size_t alignment_bytes) {
  return emulator::find_shared_memory(emulator::own_block("shared_memory"), key, length_bytes,
                                      alignment_bytes);
}

}  // namespace verbena::device::emulation
