#include "softverbs/shared/boundary.h"

#include <atomic>
#include <cerrno>
#include <cstring>
#include <new>

#include "softverbs/shared/config.h"

namespace verbena::softverbs {

Caught report_exception() noexcept {
  int error = EIO;
  try {
    throw;
  } catch (const std::bad_alloc&) {
    error = ENOMEM;
  } catch (...) {
  }
  static std::atomic<bool> is_logged{false};
  if (!is_logged.exchange(true)) {
    warn(
        "a call failed: %s. Check the limits of memory and address space (ulimit -v, the cgroup's "
        "memory.max)",
        strerror(error));
  }
  errno = error;
  return Caught(error);
}

}  // namespace verbena::softverbs
