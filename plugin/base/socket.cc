#include "base/socket.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>

#include "base/log.h"
#include "base/network_interface.h"
#include "base/parameters.h"

namespace verbena::base {
namespace {

constexpr int kBacklogConnections = 1024;  // every rank of a large job may knock at once; the kernel caps it

FileDescriptor create_tcp(const SystemAddress& address) {
  return FileDescriptor(
      ::socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP));
}

const sockaddr* as_sockaddr(const SystemAddress& address) {
  return reinterpret_cast<const sockaddr*>(&address.storage);
}

bool is_not_now(int error) {
  return error == EAGAIN || error == EWOULDBLOCK || error == EINTR;
}

// A connection that failed before accept() took it is the peer's trouble, not the listener's.
bool is_gone_already(int error) {
  return error == ECONNABORTED || error == EPROTO || error == ENETDOWN || error == EHOSTUNREACH ||
         error == ENETUNREACH || error == EHOSTDOWN || error == ENONET || error == ENOPROTOOPT;
}

// After its listener went, a fixed port's old connections linger for a minute and would keep it.
void take_lingering_port(int fd, const SocketAddress& address) {
  const int on = 1;
  if (address.port != 0) setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
}

void send_small_messages_at_once(int fd) {
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

constexpr char kCannotConnect[] =
    "cannot connect (is its process alive, does a firewall let the port through?)";

Error fail_peer(const SocketAddress& peer, int error, const char* what) {
  return fail_errno(Status::kRemote, error, "socket: peer %s: %s", describe(peer).c_str(), what);
}

Error fail_peer_closed(const SocketAddress& peer, size_t offset_bytes, size_t length_bytes) {
  return fail(Status::kRemote,
              "socket: peer %s: it closed the connection (%zu of %zu bytes received); its log says why",
              describe(peer).c_str(), offset_bytes, length_bytes);
}

}  // namespace

Socket::Socket(FileDescriptor fd, const SocketAddress& peer) : fd_(std::move(fd)), peer_(peer) {
  send_small_messages_at_once(fd_.get());
}

Result<Socket> Socket::start_connect(const SocketAddress& peer) {
  auto result = try_connect(peer);
  if (result) {
    result->is_quiet_ = false;
    return result;
  }
  const Error error = result.error();
  if (error.status == Status::kRemote) return fail_peer(peer, error.errno_value, kCannotConnect);
  if (error.status == Status::kSystem)
    return fail_errno(error.status, error.errno_value, "socket: cannot create");
  return fail(Status::kInvalidArgument, "socket: cannot connect: the handle holds no address");
}

Result<Socket> Socket::try_connect(const SocketAddress& peer) {
  const std::optional<SystemAddress> target = to_system(peer);
  if (!target) return Error{Status::kInvalidArgument, EAFNOSUPPORT};
  FileDescriptor fd = create_tcp(*target);
  if (!fd) return Error{Status::kSystem, errno};
  Socket result(std::move(fd), peer);
  const int rc = ::connect(result.fd(), as_sockaddr(*target), target->length_bytes);
  if (rc != 0 && errno != EINPROGRESS && errno != EINTR) return Error{Status::kRemote, errno};
  result.is_quiet_ = true;
  return result;
}

Result<bool> Socket::finish_connect() {
  pollfd request{fd_.get(), POLLOUT, 0};
  const int ready = ::poll(&request, 1, 0);
  if (ready < 0 && errno != EINTR) return fail_errno(Status::kSystem, errno, "socket: cannot poll");
  if (ready <= 0) return false;
  int error = 0;
  socklen_t length = sizeof error;
  if (getsockopt(fd_.get(), SOL_SOCKET, SO_ERROR, &error, &length) != 0) error = errno;
  if (error != 0 && is_quiet_) return Error{Status::kRemote, error};
  if (error != 0) return fail_peer(peer_, error, kCannotConnect);
  return true;
}

Result<bool> Socket::send_all(const void* data, size_t length_bytes, size_t& offset_bytes) {
  while (offset_bytes < length_bytes) {
    const char* next = static_cast<const char*>(data) + offset_bytes;
    const ssize_t sent = ::send(fd_.get(), next, length_bytes - offset_bytes, MSG_NOSIGNAL);
    if (sent < 0 && is_not_now(errno)) return false;
    if (sent < 0) return fail_peer(peer_, errno, "cannot send");
    offset_bytes += static_cast<size_t>(sent);
  }
  return true;
}

Result<bool> Socket::receive_exact(void* data, size_t length_bytes, size_t& offset_bytes) {
  while (offset_bytes < length_bytes) {
    char* next = static_cast<char*>(data) + offset_bytes;
    const ssize_t received = ::recv(fd_.get(), next, length_bytes - offset_bytes, 0);
    if (received < 0 && is_not_now(errno)) return false;
    if (received < 0) return fail_peer(peer_, errno, "cannot receive");
    if (received == 0) return fail_peer_closed(peer_, offset_bytes, length_bytes);
    offset_bytes += static_cast<size_t>(received);
  }
  return true;
}

size_t Socket::send_some(const void* data, size_t length_bytes) {
  const ssize_t sent = ::send(fd_.get(), data, length_bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
  return sent < 0 ? 0 : static_cast<size_t>(sent);
}

size_t Socket::receive_some(void* data, size_t length_bytes) {
  const ssize_t received = ::recv(fd_.get(), data, length_bytes, MSG_DONTWAIT);
  return received < 0 ? 0 : static_cast<size_t>(received);
}

void Socket::limit_silence(int64_t limit_ms) {
  constexpr int kProbes = 4;
  const int on = 1;
  const auto limit = static_cast<unsigned>(std::clamp<int64_t>(limit_ms, 1000, 3'600'000));
  const int spacing_s = std::max(1, static_cast<int>(limit / 1000) / (kProbes + 1));
  setsockopt(fd_.get(), SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  setsockopt(fd_.get(), IPPROTO_TCP, TCP_KEEPIDLE, &spacing_s, sizeof spacing_s);
  setsockopt(fd_.get(), IPPROTO_TCP, TCP_KEEPINTVL, &spacing_s, sizeof spacing_s);
  setsockopt(fd_.get(), IPPROTO_TCP, TCP_KEEPCNT, &kProbes, sizeof kProbes);
  setsockopt(fd_.get(), IPPROTO_TCP, TCP_USER_TIMEOUT, &limit, sizeof limit);
}

bool Socket::is_peer_closed() const {
  pollfd request{fd_.get(), POLLRDHUP, 0};
  return ::poll(&request, 1, 0) > 0;  // POLLHUP and POLLERR are always reported
}

Result<Listener> Listener::open() {
  const Result<std::vector<InterfaceAddress>> candidates = list_interface_addresses();
  if (!candidates) return candidates.error();
  const std::string& filter = parameters().socket_ifname;
  const std::optional<InterfaceAddress> selected = select_interface(*candidates, filter);
  if (selected) return open_at(selected->address);
  std::string names;
  for (const InterfaceAddress& candidate : *candidates) names += " " + candidate.name;
  return fail(Status::kInvalidUsage,
              "socket: no interface to listen on: %s names none of those that are up:%s",
              filter.empty() ? "the default" : ("VERBENA_SOCKET_IFNAME " + filter).c_str(), names.c_str());
}

Result<Listener> Listener::open_at(const SocketAddress& address) {
  const std::optional<SystemAddress> wanted = to_system(address);
  if (!wanted) return fail(Status::kInvalidArgument, "socket: cannot listen: no address");
  Listener result;
  result.fd_ = create_tcp(*wanted);
  SystemAddress bound;
  bound.length_bytes = sizeof bound.storage;
  take_lingering_port(result.fd(), address);
  if (!result.fd_ || ::bind(result.fd(), as_sockaddr(*wanted), wanted->length_bytes) != 0 ||
      ::listen(result.fd(), kBacklogConnections) != 0 ||
      ::getsockname(result.fd(), reinterpret_cast<sockaddr*>(&bound.storage), &bound.length_bytes) != 0) {
    return fail_errno(Status::kSystem, errno, "socket: cannot listen at %s", describe(address).c_str());
  }
  result.address_ = from_system(as_sockaddr(bound)).value_or(address);
  return result;
}

Result<std::optional<Socket>> Listener::accept() {
  SystemAddress peer;
  peer.length_bytes = sizeof peer.storage;
  FileDescriptor fd(::accept4(fd_.get(), reinterpret_cast<sockaddr*>(&peer.storage), &peer.length_bytes,
                              SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (!fd) {
    if (is_not_now(errno) || is_gone_already(errno)) return std::optional<Socket>();
    return fail_errno(Status::kSystem, errno, "socket: cannot accept at %s", describe(address_).c_str());
  }
  const SocketAddress address = from_system(as_sockaddr(peer)).value_or(SocketAddress());
  return std::optional<Socket>(Socket(std::move(fd), address));
}

}  // namespace verbena::base
