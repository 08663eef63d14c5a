#include "support/allocation_counter.h"

#include <atomic>
#include <cstdlib>
#include <new>

namespace {
std::atomic<int> allocations = 0;
}  // namespace

void* operator new(size_t length_bytes) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* memory = std::malloc(length_bytes)) return memory;
  throw std::bad_alloc();
}
// Every form that the standard library calls, so that what free() gets is malloc()'s.
void* operator new(size_t length_bytes, const std::nothrow_t&) noexcept {
  allocations.fetch_add(1, std::memory_order_relaxed);
  return std::malloc(length_bytes);
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, size_t) noexcept {
  std::free(memory);
}
void operator delete(void* memory, const std::nothrow_t&) noexcept {
  std::free(memory);
}

namespace verbena::verbs {

int count_allocations() {
  return allocations.load(std::memory_order_relaxed);
}

}  // namespace verbena::verbs
