#include "softverbs/faults/schedule.h"

#include <pthread.h>

#include <chrono>
#include <cstring>

#include "softverbs/shared/clock.h"
#include "softverbs/shared/config.h"
#include "softverbs/shared/own_thread.h"

namespace verbena::softverbs::faults {

void Schedule::add(uint64_t due_ns, std::function<void()> work) {
  const std::lock_guard lock(mutex_);
  entries_.emplace(due_ns, std::move(work));
  if (!is_started_) {
    const int error = start_own_thread([this] { run(); });
    if (error != 0) warn("cannot start the thread that injects planned faults: %s", strerror(error));
    is_started_ = error == 0;
  }
  changed_.notify_all();
}

void Schedule::run() {
  pthread_setname_np(pthread_self(), "softverbs-fault");
  std::unique_lock lock(mutex_);
  for (;;) {
    const uint64_t now_ns = read_clock_ns();
    if (entries_.empty()) {
      changed_.wait(lock);
    } else if (const uint64_t due_ns = entries_.begin()->first; due_ns > now_ns) {
      changed_.wait_for(lock, std::chrono::nanoseconds(due_ns - now_ns));
    } else {
      const auto work = std::move(entries_.begin()->second);
      entries_.erase(entries_.begin());
      lock.unlock();
      work();
      lock.lock();
    }
  }
}

}  // namespace verbena::softverbs::faults
