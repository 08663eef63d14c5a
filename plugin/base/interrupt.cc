#include "base/interrupt.h"

#include <unistd.h>

#include <atomic>

namespace verbena::base {
namespace {

std::atomic<InterruptCheck> g_check{nullptr};

bool is_first_thread() {
  return gettid() == getpid();
}

}  // namespace

void set_interrupt_check(InterruptCheck check) {
  g_check.store(check, std::memory_order_release);
}

bool has_interrupt_check() {
  return g_check.load(std::memory_order_relaxed) != nullptr;
}

bool is_interrupted() {
  const InterruptCheck check = g_check.load(std::memory_order_acquire);
  return check != nullptr && is_first_thread() && check() != 0;
}

}  // namespace verbena::base
