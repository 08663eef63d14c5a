#include "common/tcp.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "common/clock.h"
#include "common/error.h"

namespace verbena::tools {
namespace {

constexpr int64_t kRetryUs = 50'000;
constexpr int kSocketFlags = SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC;

std::string describe_address(const sockaddr* address, socklen_t length) {
  char host[128];
  char port[16];
  if (getnameinfo(address, length, host, sizeof host, port, sizeof port, NI_NUMERICHOST | NI_NUMERICSERV) !=
      0) {
    return "unknown address";
  }
  return std::string(host) + ":" + port;
}

// Disables Nagle's algorithm: lines are short, and the other side waits for each.
void send_at_once(int descriptor) {
  const int on = 1;
  setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

bool wait_for(int descriptor, short events, int64_t deadline_ns) {
  for (;;) {
    pollfd entry{descriptor, events, 0};
    if (poll(&entry, 1, compute_poll_timeout_ms(deadline_ns)) > 0) return true;
    if (now_ns() >= deadline_ns) return false;
  }
}

// With errno set on failure.
base::FileDescriptor open_listener(int family, uint16_t port) {
  base::FileDescriptor descriptor(socket(family, kSocketFlags, 0));
  if (!descriptor) return {};
  const int on = 1;
  const int off = 0;
  setsockopt(descriptor.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (family == AF_INET6) setsockopt(descriptor.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
  sockaddr_storage address{};
  address.ss_family = static_cast<sa_family_t>(family);
  // The port has the same offset in both address families.
  reinterpret_cast<sockaddr_in*>(&address)->sin_port = htons(port);
  const socklen_t length = family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
  if (bind(descriptor.get(), reinterpret_cast<sockaddr*>(&address), length) == 0 &&
      listen(descriptor.get(), 8) == 0)
    return descriptor;
  const int error = errno;
  descriptor.reset();
  errno = error;
  return descriptor;
}

// Returns 0 or the errno of the attempt; stores the connected socket in `connected`.
int try_connect(const addrinfo& address, int64_t deadline_ns, int& connected) {
  const int descriptor = socket(address.ai_family, kSocketFlags, 0);
  if (descriptor < 0) return errno;
  int error = connect(descriptor, address.ai_addr, address.ai_addrlen) == 0 ? 0 : errno;
  if (error == EINPROGRESS) {
    socklen_t length = sizeof error;
    if (!wait_for(descriptor, POLLOUT, deadline_ns)) {
      error = ETIMEDOUT;
    } else if (getsockopt(descriptor, SOL_SOCKET, SO_ERROR, &error, &length) != 0) {
      error = errno;
    }
  }
  if (error == 0) {
    connected = descriptor;
  } else {
    close(descriptor);
  }
  return error;
}

}  // namespace

TcpListener::TcpListener(uint16_t port) : descriptor_(open_listener(AF_INET6, port)) {
  if (!descriptor_ && errno == EAFNOSUPPORT) descriptor_ = open_listener(AF_INET, port);
  if (!descriptor_) {
    throw ToolError("cannot listen at port " + std::to_string(port) + ": " + std::strerror(errno));
  }
}

uint16_t TcpListener::port() const {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  getsockname(descriptor_.get(), reinterpret_cast<sockaddr*>(&address), &length);
  return ntohs(reinterpret_cast<sockaddr_in*>(&address)->sin_port);
}

std::optional<TcpConnection> TcpListener::accept(int64_t deadline_ns) {
  while (wait_for(descriptor_.get(), POLLIN, deadline_ns)) {
    sockaddr_storage address{};
    socklen_t length = sizeof address;
    const int descriptor = accept4(descriptor_.get(), reinterpret_cast<sockaddr*>(&address), &length,
                                   SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (descriptor < 0) continue;  // the peer has closed the connection already
    send_at_once(descriptor);
    return TcpConnection{LineChannel(descriptor),
                         describe_address(reinterpret_cast<sockaddr*>(&address), length)};
  }
  return std::nullopt;
}

TcpConnection connect_tcp(const std::string& host, uint16_t port, int64_t deadline_ns) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  const int unresolved = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list);
  if (unresolved != 0) throw ToolError("host " + host + ": " + gai_strerror(unresolved));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> addresses(list, freeaddrinfo);
  for (;;) {
    int error = 0;
    for (const addrinfo* address = list; address != nullptr; address = address->ai_next) {
      int descriptor = -1;
      error = try_connect(*address, deadline_ns, descriptor);
      if (error != 0) continue;
      send_at_once(descriptor);
      return {LineChannel(descriptor), describe_address(address->ai_addr, address->ai_addrlen)};
    }
    if (now_ns() >= deadline_ns) {
      throw ToolError("no connection to " + host + " port " + std::to_string(port) + ": " +
                      std::strerror(error));
    }
    usleep(kRetryUs);
  }
}

}  // namespace verbena::tools
