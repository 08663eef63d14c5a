// Reads memory that another thread may be writing, like a debugger: the kernel copies the bytes. A field may
// be inconsistent or outdated, so use the copy for diagnosis only, and never for decisions.
#pragma once

#include <sys/uio.h>
#include <unistd.h>

#include <type_traits>

namespace verbena::base {

// Returns false if the system does not allow it; `copy` is then unchanged.
template <typename T>
bool look_from_outside(const T& field, T& copy) {
  static_assert(std::is_trivially_copyable_v<T>);
  const iovec from{const_cast<T*>(&field), sizeof(T)};
  const iovec to{&copy, sizeof(T)};
  return process_vm_readv(getpid(), &to, 1, &from, 1, 0) == static_cast<ssize_t>(sizeof(T));
}

}  // namespace verbena::base
