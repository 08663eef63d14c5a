// A process-wide object whose users may outlive every static destructor, because NCCL's threads keep running
// while a program exits. The object is freed when the library is unloaded, if it is idle then; otherwise it
// is never freed.
//
// A forked child frees the object only if the child itself has used it, because another thread of the parent
// may have held the object's lock, which is never released in the child.
#pragma once

#include <atomic>

#include "base/own_process.h"

namespace verbena::base {

// Use it for a static variable in a function. T::is_idle() must return true if the object has no users and
// will have none.
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
