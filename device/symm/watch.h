// Looks whether all ranks are still there while kernels run: a peer that died would otherwise be waited for
// until the kernel's own time is over. A thread of its own, a look every kLookMs between collective calls.
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

  // Holds `calls` while it looks, as collective calls do; not while another one holds it. `on_loss` is called
  // once at most, on the watch's thread, with what has happened. All outlive it.
  Watch(bootstrap::Bootstrap& bootstrap, std::mutex& calls, std::function<void(const std::string&)> on_loss);
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

 private:
  void run();
  // False: a rank has gone.
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
