// Records to which process an object belongs. A forked child has a copy of the object but none of its
// threads, and shares its descriptors and shared memory with the parent. A destructor, or any other call in
// the child, would change the parent's state, so the child must not use the object.
#pragma once

#include <cstdint>
#include <memory>

namespace verbena::base {

// Create it with the object. Thread safe; costs one load.
class OwnProcess {
 public:
  OwnProcess() : forks_(count_forks()) {}
  // Returns false in a child that was forked after the object was created.
  bool is_here() const { return forks_ == count_forks(); }
  // The number of forks between the first process that asked and this one.
  static uint32_t count_forks();

 private:
  uint32_t forks_;
};

// Like std::unique_ptr, but a forked child does not delete its copy.
template <typename T>
struct DeleteInOwnProcess {
  OwnProcess process;
  void operator()(T* object) const {
    if (process.is_here()) delete object;
  }
};
template <typename T>
using OwnedHere = std::unique_ptr<T, DeleteInOwnProcess<T>>;

}  // namespace verbena::base
