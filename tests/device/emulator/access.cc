#include "access.h"

#include <cstdio>

#include "sanitizer.h"
#include "scheduler.h"
#include "verbena/device/emulation.h"
#include "world.h"

namespace verbena::emulator {

void begin_access(const char* operation, const void* address, size_t length_bytes) {
  Scheduler* scheduler = Scheduler::active();
  scheduler->step(operation, address);
  const bool is_length =
      length_bytes == 1 || length_bytes == 2 || length_bytes == 4 || length_bytes == 8 || length_bytes == 16;
  if (is_length && reinterpret_cast<uintptr_t>(address) % length_bytes == 0) return;
  const IgnoreScope ignore;
  char text[96];
  snprintf(text, sizeof text, "misaligned %s of %zu bytes at %p", operation, length_bytes, address);
  fail(text);
}

void refuse_order(const char* operation) {
  fail(std::string("there is no ") + operation + " of that order");
}

bool observe_load(const void* address, uint64_t bits, device::Order order, device::Scope scope) {
  Scheduler* scheduler = Scheduler::active();
  Fiber& self = scheduler->running();
  return scheduler->synchronization().observe_load(self.place, self.fences, address, bits, order, scope);
}

bool publish_store(const void* address, uint64_t bits, device::Order order, device::Scope scope,
                   bool is_update) {
  Scheduler* scheduler = Scheduler::active();
  Fiber& self = scheduler->running();
  return scheduler->synchronization().publish_store(self.place, self.fences, address, bits, order, scope,
                                                    is_update);
}

void forget(const void* address) {
  Scheduler::active()->synchronization().forget(address);
}

bool tears_in_order() {
  return Scheduler::active()->steps() / 3 % 2 == 0;
}

void note_store() {
  Scheduler::active()->note_progress();
}

}  // namespace verbena::emulator

namespace verbena::device::emulation {

void fence(Order order, Scope scope) {
  emulator::Scheduler* scheduler = emulator::Scheduler::active();
  scheduler->step("fence");
  if (order != Order::kAcquire && order != Order::kRelease && order != Order::kAcquireRelease &&
      order != Order::kSequential) {
    emulator::refuse_order("fence");
  }
  emulator::Fiber& self = scheduler->running();
  scheduler->synchronization().fence(self.place, self.fences, order, scope);
}

}  // namespace verbena::device::emulation
