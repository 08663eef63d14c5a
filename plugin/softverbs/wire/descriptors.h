// The descriptors of connections to other hosts, so that a forked child can close its copies: a connection
// must end with its owner, not with the last child of the owner. Lock-free, because the child must not take
// locks.
#pragma once

#include <unistd.h>

#include <atomic>
#include <cstdint>

namespace verbena::softverbs::wire {

inline constexpr int kTrackedDescriptors = 1 << 16;
inline std::atomic<uint64_t> tracked_descriptors[kTrackedDescriptors / 64];

inline int keep(int fd) {
  if (fd >= 0 && fd < kTrackedDescriptors) tracked_descriptors[fd / 64].fetch_or(uint64_t{1} << fd % 64);
  return fd;
}

inline void drop(int fd) {
  if (fd < 0) return;
  if (fd < kTrackedDescriptors) tracked_descriptors[fd / 64].fetch_and(~(uint64_t{1} << fd % 64));
  close(fd);
}

inline void close_in_child() {
  for (int word = 0; word < kTrackedDescriptors / 64; ++word) {
    uint64_t bits = tracked_descriptors[word].exchange(0);
    for (; bits != 0; bits &= bits - 1) close(word * 64 + __builtin_ctzll(bits));
  }
}

}  // namespace verbena::softverbs::wire
