// A process-wide object whose users may outlive every static destructor: NCCL's threads go on while a program
// exits. It is freed when the library is unloaded if it is idle then; otherwise it is never freed.
//
// A forked child leaves it alone unless it has used it itself: a lock that another thread of the parent had
// is never given away there.
#pragma once

#include <atomic>

#include "base/own_process.h"

namespace verbena::base {

// For a static of function scope. T has `bool is_idle()`: true if it has no users and will have none.
template <typename T>
class Lasting {
 public:
  Lasting() = default;
  Lasting(const Lasting&) = delete;
  Lasting& operator=(const Lasting&) = delete;
  ~Lasting() {
    if (user_.load(std::memory_order_relaxed) != OwnProcess::count_forks()) return;
    if (object_->is_idle()) delete object_;
  }

  T& operator*() const {
    const uint32_t here = OwnProcess::count_forks();
    if (user_.load(std::memory_order_relaxed) != here) [[unlikely]]
      user_.store(here, std::memory_order_relaxed);
    return *object_;
  }

 private:
  T* object_ = new T;
  mutable std::atomic<uint32_t> user_{OwnProcess::count_forks()};  // the last process that used it
};

}  // namespace verbena::base
