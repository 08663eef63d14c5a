#include "device/symm/watch.h"

#include <pthread.h>

#include <chrono>
#include <utility>

#include "base/blocked_signals.h"
#include "base/log.h"

namespace verbena::symm {

Watch::Watch(bootstrap::Bootstrap& bootstrap, std::mutex& calls,
             std::function<void(const std::string&)> on_loss)
    : bootstrap_(bootstrap), calls_(calls), on_loss_(std::move(on_loss)) {
  const base::BlockedSignals blocked;
  thread_ = std::thread([this] { run(); });
}

Watch::~Watch() {
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void Watch::run() {
  pthread_setname_np(pthread_self(), "verbena-watch");
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, std::chrono::milliseconds(kLookMs), [this] { return is_stopping_; })) {
    lock.unlock();
    if (!look()) return on_loss_(base::last_failure());
    lock.lock();
  }
}

bool Watch::look() {
  const std::unique_lock call(calls_, std::try_to_lock);
  return !call || bootstrap_.check_ranks();
}

}  // namespace verbena::symm
