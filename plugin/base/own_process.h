// Which process an object belongs to. A forked child has a copy of the object, but none of its threads, and
// shares its descriptors and its shared memory with the parent: what a destructor, or any other call, does to
// those in the child is done to the parent. So such an object is left alone there.
#pragma once

#include <cstdint>
#include <memory>

namespace verbena::base {

// Made with the object. Threads; one load.
class OwnProcess {
 public:
  OwnProcess() : forks_(count_forks()) {}
  // False in a child that was forked since.
  bool is_here() const { return forks_ == count_forks(); }
  // Between the first process and this one, since it was first asked.
  static uint32_t count_forks();

 private:
  uint32_t forks_;
};

// As std::unique_ptr, but a forked child does not delete its copy.
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
