#include "base/socket.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>

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

void send_small_messages_at_once(int fd) {
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

Error fail_peer(const SocketAddress& peer, int error, const char* what) {
  return fail_errno(Status::kRemote, error, "socket: peer %s: %s", describe(peer).c_str(), what);
}

Error fail_peer_closed(const SocketAddress& peer, size_t offset_bytes, size_t length_bytes) {
  return fail(Status::kRemote, "socket: peer %s: it closed the connection (%zu of %zu bytes received)",
              describe(peer).c_str(), offset_bytes, length_bytes);
}

}  // namespace

Socket::Socket(FileDescriptor fd, const SocketAddress& peer) : fd_(std::move(fd)), peer_(peer) {
  send_small_messages_at_once(fd_.get());
}

Result<Socket> Socket::start_connect(const SocketAddress& peer) {
  const std::optional<SystemAddress> target = to_system(peer);
  if (!target) return fail(Status::kInvalidArgument, "socket: cannot connect: the handle holds no address");
  FileDescriptor fd = create_tcp(*target);
  if (!fd) return fail_errno(Status::kSystem, errno, "socket: cannot create");
  Socket result(std::move(fd), peer);
  const int rc = ::connect(result.fd(), as_sockaddr(*target), target->length_bytes);
  if (rc != 0 && errno != EINPROGRESS && errno != EINTR) return fail_peer(peer, errno, "cannot connect");
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
  if (error != 0) return fail_peer(peer_, error, "cannot connect");
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
