// Something of the process whose users may outlive every static destructor: NCCL's threads go on while a
// program exits. It is freed when the library is unloaded with nobody using it, and stays otherwise.
#pragma once

namespace verbena::base {

// Made for a static of function scope. T has `bool is_idle()`: nobody uses it, and nobody will.
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
