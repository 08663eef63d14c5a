// Options of sockets to other hosts: they determine how soon a dead host is noticed.
#pragma once

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include "softverbs/wire/descriptors.h"

namespace verbena::softverbs::wire {

// A peer that does not answer for this time counts as gone, even if its queue pairs' timeouts are longer.
inline constexpr int kUserTimeoutMs = 120'000;

// Probes on an idle connection distinguish a dead host from a silent process.
inline void tune_socket(int fd) {
  constexpr int kOn = 1, kProbeSeconds = 1, kProbes = 10;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &kOn, sizeof(kOn));
  setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &kOn, sizeof(kOn));
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &kProbeSeconds, sizeof(kProbeSeconds));
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &kProbeSeconds, sizeof(kProbeSeconds));
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &kProbes, sizeof(kProbes));
  setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &kUserTimeoutMs, sizeof(kUserTimeoutMs));
}

inline int open_socket(int family) {
  const int fd = keep(socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (fd >= 0) tune_socket(fd);
  return fd;
}

}  // namespace verbena::softverbs::wire
