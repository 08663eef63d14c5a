#include "device/emulator/ordering_cases.h"

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "device/emulator/world.h"
#include "verbena/device/emulation.h"

namespace verbena::emulator {
namespace {

using namespace device;             // NOLINT
using namespace device::emulation;  // NOLINT

void finish(World& world) {
  const std::string text = world.run();
  if (text.empty()) return;
  fprintf(stderr, "%s\n", text.c_str());
  exit(1);
}

// ThreadSanitizer remembers four accesses for each 8 bytes: what is to be judged stands alone.
struct alignas(64) Word {
  uint32_t value = 0;
};

// Where the reader stands, seen from the writer.
enum class Reader { kSameCluster, kOtherBlock, kOtherGpu };

// One thread writes data and sets a flag, another waits for the flag and reads the data.
template <Order kStore, Scope kStoreScope, Order kLoad, Scope kLoadScope,
          Reader kReader = Reader::kOtherBlock, Order kFence = Order::kWeak, Scope kFenceScope = Scope::kGpu>
void pass_message(uint64_t seed) {
  Word data;
  Word flag;
  const auto write = [&] {
    const uint32_t one = 1;
    store(&data.value, &one, 4, Order::kWeak, Scope::kThreads);
    if (kFence != Order::kWeak) fence(kFence, kFenceScope);
    store(&flag.value, &one, 4, kStore, kStoreScope);
  };
  const auto read = [&] {
    uint32_t seen = 0;
    while (seen == 0) load(&seen, &flag.value, 4, kLoad, kLoadScope);
    if (kFence != Order::kWeak) fence(kFence, kFenceScope);
    load(&seen, &data.value, 4, Order::kWeak, Scope::kThreads);
    require(seen == 1, "data");
  };
  World world(seed);
  if (kReader == Reader::kOtherGpu) {
    world.add_grid(0, 1, 1, write);
    world.add_grid(1, 1, 1, read);
  } else {
    world.add_grid(
        0, 2, 1, [&] { index().block == 0 ? write() : read(); }, kReader == Reader::kSameCluster ? 2 : 1);
  }
  finish(world);
}

// A third thread passes the message on; the edges add up. `kUpdate`: it only counts, as arrivals at a barrier
// do.
template <Order kMiddle, Scope kScope>
void pass_on_with_update(uint64_t seed) {
  Word data;
  Word count;
  World world(seed);
  world.add_grid(0, 3, 1, [&] {
    uint32_t seen = 0;
    if (index().block == 0) {
      const uint32_t one = 1;
      store(&data.value, &one, 4, Order::kWeak, Scope::kThreads);
      store(&count.value, &one, 4, Order::kRelease, Scope::kGpu);
    } else if (index().block == 1) {
      while (seen == 0) load(&seen, &count.value, 4, Order::kRelaxed, Scope::kGpu);
      update(&count.value, Operation::kAdd, 1, 0, 4, kMiddle, kScope);
    } else {
      while (seen != 2) load(&seen, &count.value, 4, Order::kAcquire, Scope::kGpu);
      load(&seen, &data.value, 4, Order::kWeak, Scope::kThreads);
    }
  });
  finish(world);
}

// A relaxed store by another thread ends what the release before it promised.
void overwritten_release(uint64_t seed) {
  Word data;
  Word flag;
  World world(seed);
  world.add_grid(0, 3, 1, [&] {
    const uint32_t next = index().block + 1;
    uint32_t seen = 0;
    if (index().block == 0) {
      store(&data.value, &next, 4, Order::kWeak, Scope::kThreads);
      store(&flag.value, &next, 4, Order::kRelease, Scope::kGpu);
    } else if (index().block == 1) {
      while (seen != 1) load(&seen, &flag.value, 4, Order::kRelaxed, Scope::kGpu);
      store(&flag.value, &next, 4, Order::kRelaxed, Scope::kGpu);
    } else {
      while (seen != 2) load(&seen, &flag.value, 4, Order::kRelaxed, Scope::kGpu);
      load(&seen, &flag.value, 4, Order::kAcquire, Scope::kGpu);
      load(&seen, &data.value, 4, Order::kWeak, Scope::kThreads);
    }
  });
  finish(world);
}

// The fence stands before the data: what it releases does not hold them.
void fence_too_early(uint64_t seed) {
  Word data;
  Word flag;
  World world(seed);
  world.add_grid(0, 2, 1, [&] {
    const uint32_t one = 1;
    uint32_t seen = 0;
    if (index().block == 0) {
      fence(Order::kAcquireRelease, Scope::kGpu);
      store(&data.value, &one, 4, Order::kWeak, Scope::kThreads);
      store(&flag.value, &one, 4, Order::kRelaxed, Scope::kGpu);
    } else {
      while (seen == 0) load(&seen, &flag.value, 4, Order::kAcquire, Scope::kGpu);
      load(&seen, &data.value, 4, Order::kWeak, Scope::kThreads);
    }
  });
  finish(world);
}

// A flag alone, no data: the accesses to it race if their scopes do not reach each other.
template <Scope kStoreScope, Scope kLoadScope>
void bare_flag(uint64_t seed) {
  Word flag;
  const uint32_t one = 1;
  World world(seed);
  world.add_grid(0, 1, 1, [&] { store(&flag.value, &one, 4, Order::kRelaxed, kStoreScope); });
  world.add_grid(1, 1, 1, [&] {
    uint32_t seen = 0;
    while (seen == 0) load(&seen, &flag.value, 4, Order::kRelaxed, kLoadScope);
  });
  finish(world);
}

// Host code with C++'s atomics fills, a kernel reads.
template <std::memory_order kStore, Order kLoad, Scope kLoadScope>
void host_to_kernel(uint64_t seed) {
  Word data;
  Word flag;
  World world(seed);
  world.add_host([&] {
    yield();
    data.value = 1;
    yield();
    std::atomic_ref<uint32_t>(flag.value).store(1, kStore);
  });
  world.add_grid(0, 1, 1, [&] {
    uint32_t seen = 0;
    while (seen == 0) load(&seen, &flag.value, 4, kLoad, kLoadScope);
    load(&seen, &data.value, 4, Order::kWeak, Scope::kThreads);
  });
  finish(world);
}

// A kernel fills, host code reads.
template <Order kStore, Scope kStoreScope>
void kernel_to_host(uint64_t seed) {
  Word data;
  Word flag;
  World world(seed);
  world.add_host([&] {
    while (std::atomic_ref<uint32_t>(flag.value).load(std::memory_order_acquire) == 0) yield();
    require(data.value == 1, "data");
  });
  world.add_grid(0, 1, 1, [&] {
    const uint32_t one = 1;
    store(&data.value, &one, 4, Order::kWeak, Scope::kThreads);
    store(&flag.value, &one, 4, kStore, kStoreScope);
  });
  finish(world);
}

enum class Meeting { kBlock, kWarp, kShuffle, kBallot, kOnce };

// Lanes hand values round through shared memory; kOnce leaves out the second of the two barriers of a round.
template <Meeting kMeeting>
void hand_round(uint64_t seed) {
  static const char key = 0;
  World world(seed);
  world.add_grid(0, 1, 32, [] {
    auto* cells = static_cast<uint32_t*>(shared_memory(&key, 128, 16));
    const uint32_t lane = index().thread;
    for (uint32_t round = 0; round < 6; ++round) {
      cells[lane] = round;
      if (kMeeting == Meeting::kBlock || kMeeting == Meeting::kOnce) sync_block();
      if (kMeeting == Meeting::kWarp) sync_warp(kFullWarp);
      if (kMeeting == Meeting::kShuffle) shuffle(kFullWarp, 0, 0);
      if (kMeeting == Meeting::kBallot) ballot(kFullWarp, true);
      volatile uint32_t seen = cells[(lane + 1) % 32];
      static_cast<void>(seen);
      if (kMeeting != Meeting::kOnce) sync_block();
    }
  });
  finish(world);
}

constexpr Order kWeak = Order::kWeak, kRelaxed = Order::kRelaxed, kAcquire = Order::kAcquire,
                kRelease = Order::kRelease, kBoth = Order::kAcquireRelease;
constexpr Scope kBlock = Scope::kBlock, kCluster = Scope::kCluster, kGpu = Scope::kGpu,
                kSystem = Scope::kSystem;
constexpr auto kSameCluster = Reader::kSameCluster, kOtherBlock = Reader::kOtherBlock,
               kOtherGpu = Reader::kOtherGpu;

constexpr OrderingCase kCases[] = {
    {"release_acquire", false, pass_message<kRelease, kGpu, kAcquire, kGpu>},
    {"relaxed_store", true, pass_message<kRelaxed, kGpu, kAcquire, kGpu>},
    {"relaxed_load", true, pass_message<kRelease, kGpu, kRelaxed, kGpu>},
    {"volatile_both", true, pass_message<Order::kVolatile, kGpu, Order::kVolatile, kGpu>},
    {"weak_flag", true, pass_message<kWeak, kGpu, kAcquire, kGpu>},
    {"block_scope_store", true, pass_message<kRelease, kBlock, kAcquire, kGpu>},
    {"block_scope_load", true, pass_message<kRelease, kGpu, kAcquire, kBlock>},
    {"cluster_scope", false, pass_message<kRelease, kCluster, kAcquire, kCluster, kSameCluster>},
    {"cluster_scope_other_cluster", true, pass_message<kRelease, kCluster, kAcquire, kCluster>},
    {"block_scope_same_cluster", true, pass_message<kRelease, kBlock, kAcquire, kCluster, kSameCluster>},
    {"system_scope_other_gpu", false, pass_message<kRelease, kSystem, kAcquire, kSystem, kOtherGpu>},
    {"gpu_scope_store_other_gpu", true, pass_message<kRelease, kGpu, kAcquire, kSystem, kOtherGpu>},
    {"gpu_scope_load_other_gpu", true, pass_message<kRelease, kSystem, kAcquire, kGpu, kOtherGpu>},
    {"fences", false, pass_message<kRelaxed, kGpu, kRelaxed, kGpu, kOtherBlock, kBoth, kGpu>},
    {"fences_sequential", false,
     pass_message<kRelaxed, kSystem, kRelaxed, kSystem, kOtherGpu, Order::kSequential, kSystem>},
    {"fences_block_scope", true, pass_message<kRelaxed, kGpu, kRelaxed, kGpu, kOtherBlock, kBoth, kBlock>},
    {"fences_gpu_scope_other_gpu", true,
     pass_message<kRelaxed, kSystem, kRelaxed, kSystem, kOtherGpu, kBoth, kGpu>},
    {"fences_acquire_only", true, pass_message<kRelaxed, kGpu, kRelaxed, kGpu, kOtherBlock, kAcquire, kGpu>},
    {"fences_release_only", true, pass_message<kRelaxed, kGpu, kRelaxed, kGpu, kOtherBlock, kRelease, kGpu>},
    {"fence_too_early", true, fence_too_early},
    {"relaxed_update_passes_on", false, pass_on_with_update<kRelaxed, kGpu>},
    {"overwritten_release", true, overwritten_release},
    {"bare_flag_system", false, bare_flag<kSystem, kSystem>},
    {"bare_flag_gpu_store", true, bare_flag<kGpu, kSystem>},
    {"bare_flag_gpu_load", true, bare_flag<kSystem, kGpu>},
    {"host_to_kernel", false, host_to_kernel<std::memory_order_release, kAcquire, kSystem>},
    {"host_to_kernel_gpu_scope", true, host_to_kernel<std::memory_order_release, kAcquire, kGpu>},
    {"host_to_kernel_relaxed_load", true, host_to_kernel<std::memory_order_release, kRelaxed, kSystem>},
    {"host_to_kernel_relaxed_store", true, host_to_kernel<std::memory_order_relaxed, kAcquire, kSystem>},
    {"kernel_to_host", false, kernel_to_host<kRelease, kSystem>},
    {"kernel_to_host_gpu_scope", true, kernel_to_host<kRelease, kGpu>},
    {"kernel_to_host_relaxed", true, kernel_to_host<kRelaxed, kSystem>},
    {"block_barrier", false, hand_round<Meeting::kBlock>},
    {"warp_barrier", false, hand_round<Meeting::kWarp>},
    {"shuffle_is_no_barrier", true, hand_round<Meeting::kShuffle>},
    {"ballot_is_no_barrier", true, hand_round<Meeting::kBallot>},
    {"one_barrier_a_round", true, hand_round<Meeting::kOnce>},
};

}  // namespace

std::span<const OrderingCase> ordering_cases() {
  return kCases;
}

}  // namespace verbena::emulator
