#include "base/random.h"

#include <sys/random.h>

#include <cerrno>

#include "base/log.h"

namespace verbena::base {

Outcome draw_random(std::span<uint8_t> bytes, const char* what) {
  if (getrandom(bytes.data(), bytes.size(), GRND_NONBLOCK) == static_cast<ssize_t>(bytes.size())) return {};
  return fail_errno(Status::kSystem, errno, "%s: cannot get random bytes from the system", what);
}

}  // namespace verbena::base
