// A look at memory that another thread is writing, as a debugger has it: the kernel copies the bytes. For
// people, who can bear a field that is torn or one message old; nothing may be decided by it.
#pragma once

#include <sys/uio.h>
#include <unistd.h>

#include <type_traits>

namespace verbena::base {

// False: this system does not allow it; `copy` is as it was.
template <typename T>
bool look_from_outside(const T& field, T& copy) {
  static_assert(std::is_trivially_copyable_v<T>);
  const iovec from{const_cast<T*>(&field), sizeof(T)};
  const iovec to{&copy, sizeof(T)};
  return process_vm_readv(getpid(), &to, 1, &from, 1, 0) == static_cast<ssize_t>(sizeof(T));
}

}  // namespace verbena::base
