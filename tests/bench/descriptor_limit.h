#pragma once

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>

namespace verbena::bench {

// A handshake has a socket of its own until it stands. Before there are threads: the kernel grows the table
// of a process with threads only after an RCU grace period, which takes seconds where more threads poll than
// there are processors.
inline void raise_descriptor_limit() {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  constexpr int kUsual = 1023;
  const int last =
      fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, static_cast<int>(std::min<rlim_t>(kUsual, limit.rlim_cur - 1)));
  if (last >= 0) close(last);
}

}  // namespace verbena::bench
