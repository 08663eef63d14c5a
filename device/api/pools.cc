// Implements the pools of verbena.h. A pool provides the memory of one window to a framework's allocator.
#include <algorithm>
#include <array>
#include <mutex>

#include "base/log.h"
#include "device/api/objects.h"
#include "device/symm/heap.h"

using namespace verbena;
using base::Outcome;
using base::Status;

struct verbena_pool {
  verbena_context* context;
  symm::ContextWindow* window;
  uint32_t place;  // index among all pools of the process
  std::mutex mutex;
  symm::OffsetPlan plan;                   // guarded
  uint64_t count = 0;                      // guarded: number of successful allocations and frees
  uint64_t history = 0;                    // guarded: a hash that is equal on ranks with the same calls
  uint64_t used_bytes = 0, max_bytes = 0;  // guarded

  verbena_pool(verbena_context* of, symm::ContextWindow* memory, uint32_t number)
      : context(of), window(memory), place(number), plan(memory->length_bytes) {}

  void* allocate(size_t length_bytes, int gpu);
  void release(void* address, size_t length_bytes);
  void note(uint64_t offset, uint64_t length_bytes);
};

namespace {

constexpr uint64_t kUnitBytes = 512;  // PyTorch's alignment, a multiple of every alignment that kernels need
constexpr uint32_t kMaxPools = 8;

// An allocator's functions take no user argument, so each pool needs separate functions.
struct Pools {
  std::mutex mutex;
  std::array<verbena_pool*, kMaxPools> all{};  // guarded

  static Pools& instance() {
    static Pools pools;
    return pools;
  }
  verbena_pool* find(uint32_t place) {
    const std::lock_guard lock(mutex);
    return all[place];
  }
};

uint64_t round_up(uint64_t length_bytes) {
  return (std::max<uint64_t>(length_bytes, 1) + kUnitBytes - 1) / kUnitBytes * kUnitBytes;
}

template <uint32_t place>
void* allocate_in(ssize_t length_bytes, int gpu, void*) {
  verbena_pool* const pool = Pools::instance().find(place);
  return pool == nullptr || length_bytes < 0 ? nullptr
                                             : pool->allocate(static_cast<size_t>(length_bytes), gpu);
}
template <uint32_t place>
void release_in(void* address, ssize_t length_bytes, int, void*) {
  verbena_pool* const pool = Pools::instance().find(place);
  if (pool != nullptr && address != nullptr) pool->release(address, static_cast<size_t>(length_bytes));
}

Outcome enter(verbena_context* context, symm::ContextWindow* window, verbena_pool** made) {
  Pools& pools = Pools::instance();
  const std::lock_guard lock(pools.mutex);
  const auto free = std::find(pools.all.begin(), pools.all.end(), nullptr);
  if (free == pools.all.end())
    return base::fail(Status::kInvalidUsage,
                      "api: this process already has %u pools, which is the maximum. Free a pool first",
                      kMaxPools);
  *free = new verbena_pool(context, window, static_cast<uint32_t>(free - pools.all.begin()));
  *made = *free;
  return {};
}

void leave(verbena_pool* pool) {
  {
    Pools& pools = Pools::instance();
    const std::lock_guard lock(pools.mutex);
    pools.all[pool->place] = nullptr;
  }
  delete pool;
}

}  // namespace

// Ranks that allocate and free the same sizes in the same order have the same history, and the same offset
// for each allocation.
void verbena_pool::note(uint64_t offset, uint64_t length_bytes) {
  constexpr uint64_t kPrime = 0x100000001b3;
  history = ((history ^ offset) * kPrime ^ length_bytes) * kPrime;
  ++count;
}

void* verbena_pool::allocate(size_t length_bytes, int gpu) {
  const std::lock_guard lock(mutex);
  if (gpu != context->context->gpu()) {
    base::log_warn(
        "pool: an allocation on GPU %d was requested from a pool on GPU %d. The allocation returns NULL", gpu,
        context->context->gpu());
    return nullptr;
  }
  const uint64_t taken_bytes = round_up(length_bytes);
  const auto offset = plan.take(taken_bytes);
  note(offset.value_or(UINT64_MAX), taken_bytes);
  if (!offset) {
    base::log_warn(
        "pool: there is not enough free space for %zu bytes: of the pool's %llu bytes, %llu bytes are in "
        "use. Create a larger pool",
        length_bytes, static_cast<unsigned long long>(window->length_bytes),
        static_cast<unsigned long long>(used_bytes));
    return nullptr;
  }
  used_bytes += taken_bytes;
  max_bytes = std::max(max_bytes, used_bytes);
  return window->address + *offset;
}

void verbena_pool::release(void* address, size_t length_bytes) {
  const std::lock_guard lock(mutex);
  const auto offset = static_cast<uint64_t>(static_cast<std::byte*>(address) - window->address);
  const uint64_t taken_bytes = round_up(length_bytes);
  note(offset, taken_bytes);
  plan.give_back(offset);
  used_bytes -= std::min(used_bytes, taken_bytes);
}

void api::forget_pools(const verbena_context& context) {
  Pools& pools = Pools::instance();
  const std::lock_guard lock(pools.mutex);
  for (verbena_pool*& pool : pools.all) {
    if (pool == nullptr || pool->context != &context) continue;
    delete pool;
    pool = nullptr;
  }
}

// PyTorch finds the functions by their names.
#define VERBENA_POOL_FUNCTIONS(place)                                                                       \
  extern "C" VERBENA_API void* verbena_pool_allocate_##place(ssize_t length_bytes, int gpu, void* stream) { \
    return allocate_in<place>(length_bytes, gpu, stream);                                                   \
  }                                                                                                         \
  extern "C" VERBENA_API void verbena_pool_release_##place(void* address, ssize_t length_bytes, int gpu,    \
                                                           void* stream) {                                  \
    release_in<place>(address, length_bytes, gpu, stream);                                                  \
  }
VERBENA_POOL_FUNCTIONS(0)
VERBENA_POOL_FUNCTIONS(1)
VERBENA_POOL_FUNCTIONS(2)
VERBENA_POOL_FUNCTIONS(3)
VERBENA_POOL_FUNCTIONS(4)
VERBENA_POOL_FUNCTIONS(5)
VERBENA_POOL_FUNCTIONS(6)
VERBENA_POOL_FUNCTIONS(7)
static_assert(kMaxPools == 8, "verbena: functions for each pool");

extern "C" {

verbena_result verbena_pool_create(verbena_context* context, size_t length_bytes, verbena_pool** pool) {
  return api::guard(context->context->process(), [&]() -> Outcome {
    const auto window = context->context->allocate_window(length_bytes);
    if (!window) return window.error();
    const Outcome entered = enter(context, *window, pool);
    // An index may already be taken on some ranks only.
    const Outcome agreed = context->context->agree(entered);
    if (agreed) return agreed;
    if (entered) leave(*pool);
    static_cast<void>(context->context->free_window(**window));
    return agreed;
  });
}

verbena_result verbena_pool_free(verbena_pool* pool) {
  if (pool == nullptr)
    return api::guard([&]() -> Outcome { return base::fail(Status::kInvalidArgument, "api: pool is NULL"); });
  symm::Context& context = *pool->context->context;
  return api::guard_end(context.process(), [&] {
    symm::ContextWindow& window = *pool->window;
    leave(pool);
    return context.free_window(window);
  });
}

verbena_result verbena_pool_check(verbena_pool* pool) {
  return api::guard(pool->context->context->process(), [&] {
    std::unique_lock lock(pool->mutex);
    const uint64_t count = pool->count, history = pool->history;
    lock.unlock();
    return pool->context->context->compare_history("a pool", count, history);
  });
}

verbena_window* verbena_pool_window(const verbena_pool* pool) {
  return api::wrap(pool->window);
}

size_t verbena_pool_max_used(verbena_pool* pool) {
  const std::lock_guard lock(pool->mutex);
  return pool->max_bytes;
}

uint32_t verbena_pool_index(const verbena_pool* pool) {
  return pool->place;
}

}  // extern "C"
