// A process-wide object whose users may outlive every static destructor: NCCL's threads go on while a program
// exits. It is freed when the library is unloaded if it is idle then; otherwise it is never freed.
#pragma once

namespace verbena::base {

// For a static of function scope. T has `bool is_idle()`: true if it has no users and will have none.
template <typename T>
class Lasting {
 public:
  Lasting() = default;
  Lasting(const Lasting&) = delete;
  Lasting& operator=(const Lasting&) = delete;
  ~Lasting() {
    if (object_->is_idle()) delete object_;
  }

  T& operator*() const { return *object_; }

 private:
  T* object_ = new T;
};

}  // namespace verbena::base
