// Sets the length of a file. Above the limit of file sizes (`ulimit -f`) ftruncate() sends SIGXFSZ, which
// ends the process by default; set_file_length() fails with EFBIG instead.
#pragma once

#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

namespace verbena::base {

// Returns 0, or -1 with errno, like ftruncate().
inline int set_file_length(int file, uint64_t bytes) {
  rlimit limit{};
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < bytes) {
    errno = EFBIG;
    return -1;
  }
  return ftruncate(file, static_cast<off_t>(bytes));
}

}  // namespace verbena::base
