// Detects dead ranks while kernels run. Without this check, kernels would wait for a dead peer until they
// time out. Between collective calls, a separate thread checks every kLookMs milliseconds.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "bootstrap/bootstrap.h"

namespace verbena::symm {

class Watch {
 public:
  static constexpr int64_t kLookMs = 200;

  // Starts the thread. The thread holds the mutex `calls` during a check, as collective calls do, and skips
  // the check if another thread holds the mutex. The thread calls `on_loss` at most once, with the cause. All
  // arguments must outlive the Watch.
  Watch(bootstrap::Bootstrap& bootstrap, std::mutex& calls, std::function<void(const std::string&)> on_loss);
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

 private:
  void run();
  // Checks once. Returns false if a rank has exited.
  bool look();

  bootstrap::Bootstrap& bootstrap_;
  std::mutex& calls_;
  const std::function<void(const std::string&)> on_loss_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool is_stopping_ = false;  // guarded by mutex_
  std::thread thread_;
};

}  // namespace verbena::symm
