#include "base/own_process.h"

#include <pthread.h>

#include <atomic>

namespace verbena::base {

uint32_t OwnProcess::count_forks() {
  static std::atomic<uint32_t> forks{0};
  // Destroyed when the library is unloaded.
  static const int watches = pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1); });
  static_cast<void>(watches);
  return forks.load(std::memory_order_relaxed);
}

}  // namespace verbena::base
