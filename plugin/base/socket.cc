#include "base/socket.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <deque>
#include <map>
#include <mutex>
#include <utility>

#include "base/lasting.h"
#include "base/log.h"
#include "base/network_interface.h"
#include "base/parameters.h"
#include "base/random.h"
#include "crypto/encrypted_stream.h"

namespace verbena::base {
namespace {

constexpr int kBacklogConnections = 1024;  // all ranks of a job may connect at once; the kernel has a limit

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

// The connection failed before accept() took it. This is an error of that peer, not of the listener.
bool is_gone_already(int error) {
  return error == ECONNABORTED || error == EPROTO || error == ENETDOWN || error == EHOSTUNREACH ||
         error == ENETUNREACH || error == EHOSTDOWN || error == ENONET || error == ENOPROTOOPT;
}

// The process or the host has no descriptor or memory left. The client stays in the listener's queue.
bool is_short_of_room(int error) {
  return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
}

// Without this option, connections that an earlier listener accepted would block its port, even for a minute
// after they are closed (TIME_WAIT). The connections that this listener accepts inherit the option, so that a
// later listener can use the port.
void share_port_with_connections(int fd) {
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
}

// The ports of closed listeners, by address. Several are used in turn, because a peer has a limited number of
// local ports for connections to one port of this process.
class FreePorts {
 public:
  static constexpr size_t kInTurn = 64;

  // Returns port 0 if the kernel must choose a new port.
  SocketAddress take(const SocketAddress& any_port) {
    const std::lock_guard lock(mutex_);
    SocketAddress address = any_port;
    auto& free = free_[describe(any_port)];
    if (lent_++ + free.size() < kInTurn || free.empty()) return address;
    address.port = free.front();
    free.pop_front();
    return address;
  }
  void release(const SocketAddress& address) {
    const std::lock_guard lock(mutex_);
    --lent_;
    SocketAddress any_port = address;
    any_port.port = 0;
    if (address.port != 0) free_[describe(any_port)].push_back(address.port);
  }
  bool is_idle() {
    const std::lock_guard lock(mutex_);
    return lent_ == 0;
  }

 private:
  std::mutex mutex_;
  size_t lent_ = 0;
  std::map<std::string, std::deque<uint16_t>> free_;  // oldest first
};

FreePorts& get_free_ports() {
  static const Lasting<FreePorts> ports;
  return *ports;
}

void send_small_messages_at_once(int fd) {
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

constexpr char kCannotConnect[] =
    "cannot connect (check that the peer's process is alive and that firewalls let the port through)";

Error fail_peer(const SocketAddress& peer, int error, const char* what) {
  return fail_errno(Status::kRemote, error, "socket: peer %s: %s", describe(peer).c_str(), what);
}

Error fail_peer_closed(const SocketAddress& peer, size_t offset_bytes, size_t length_bytes) {
  return fail(
      Status::kRemote,
      "socket: peer %s: the peer closed the connection (%zu of %zu bytes received). The peer's log says why",
      describe(peer).c_str(), offset_bytes, length_bytes);
}

constexpr char kNotEncrypted[] =
    "the peer does not encrypt, or is not a rank of this job. VERBENA_ENCRYPTION and VERBENA_JOB_KEY_FILE "
    "must be the same for every rank";
constexpr char kNotGenuine[] =
    "the peer's data was not encrypted with this process's key. Either VERBENA_JOB_KEY_FILE differs, or the "
    "data was changed in transit";

}  // namespace

struct Socket::Encryption {
  // The preamble, which both ends send first, in plain text.
  struct Preamble {
    uint64_t magic = 0x3163'6e65'6272'6576;  // "verbenc1" in memory order
    std::array<uint8_t, 32> word{};          // random
  };
  static_assert(sizeof(Preamble) == 40);

  std::shared_ptr<const HmacKey> key;
  ConnectionEnd end;
  Preamble ours, theirs;
  size_t sent_bytes = 0, received_bytes = 0;        // of the preambles
  std::unique_ptr<crypto::EncryptedStream> stream;  // once both are known
  const char* problem = nullptr;
};

Socket::Socket() = default;
Socket::Socket(Socket&&) noexcept = default;
Socket& Socket::operator=(Socket&&) noexcept = default;
Socket::~Socket() = default;

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
    return fail_errno(error.status, error.errno_value, "socket: cannot create a socket");
  return fail(Status::kInvalidArgument,
              "socket: cannot connect, because the peer's handle contains no address. Check that the handle "
              "arrived completely and that both hosts run the same build");
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
  if (ready < 0 && errno != EINTR)
    return fail_errno(Status::kSystem, errno, "socket: cannot poll the socket");
  if (ready <= 0) return false;
  int error = 0;
  socklen_t length = sizeof error;
  if (getsockopt(fd_.get(), SOL_SOCKET, SO_ERROR, &error, &length) != 0) error = errno;
  if (error != 0 && is_quiet_) return Error{Status::kRemote, error};
  if (error != 0) return fail_peer(peer_, error, kCannotConnect);
  return true;
}

Outcome Socket::encrypt(std::shared_ptr<const HmacKey> key, ConnectionEnd end) {
  encryption_ = std::make_unique<Encryption>();
  encryption_->key = std::move(key);
  encryption_->end = end;
  return draw_random(encryption_->ours.word, "encryption");
}

bool Socket::awaits_peer() const {
  return encryption_ != nullptr && encryption_->stream == nullptr &&
         encryption_->sent_bytes == sizeof(Encryption::Preamble);
}

const char* Socket::explain_end() const {
  if (encryption_ == nullptr || encryption_->problem != nullptr)
    return encryption_ == nullptr ? nullptr : encryption_->problem;
  return encryption_->stream == nullptr ? kNotEncrypted : nullptr;
}

bool Socket::is_spoilt() const {
  return encryption_ != nullptr && encryption_->problem != nullptr;
}

// Like HKDF (RFC 5869): derives a session key from the random words of both ends, and from it a key for each
// direction.
bool Socket::derive_keys() {
  Encryption& e = *encryption_;
  const bool connected = e.end == ConnectionEnd::kSender;
  const Encryption::Preamble &first = connected ? e.ours : e.theirs, &second = connected ? e.theirs : e.ours;
  constexpr uint8_t kFirstBlock = 1;
  const auto session = e.key->derive({as_label("verbena encryption"), as_whole(first), as_whole(second)});
  if (!session) return false;
  const auto forth = session->compute({as_label("to the listener"), as_whole(kFirstBlock)});
  const auto back = session->compute({as_label("to the caller"), as_whole(kFirstBlock)});
  if (!forth || !back) return false;
  e.stream = crypto::EncryptedStream::create(connected ? *forth : *back, connected ? *back : *forth,
                                             crypto::EncryptedStream::kForControl);
  return e.stream != nullptr;
}

// If it returns false, errno says whether to call again (EAGAIN) or to give up.
bool Socket::begin_encryption() {
  using Preamble = Encryption::Preamble;
  Encryption& e = *encryption_;
  if (e.problem != nullptr) return errno = EPROTO, false;
  const auto* words = reinterpret_cast<const char*>(&e.ours);
  auto* answer = reinterpret_cast<char*>(&e.theirs);
  while (e.sent_bytes < sizeof(Preamble)) {
    const ssize_t sent =
        ::send(fd_.get(), words + e.sent_bytes, sizeof(Preamble) - e.sent_bytes, MSG_NOSIGNAL);
    if (sent < 0) return false;
    e.sent_bytes += static_cast<size_t>(sent);
  }
  while (e.received_bytes < sizeof(Preamble)) {
    const ssize_t received =
        ::recv(fd_.get(), answer + e.received_bytes, sizeof(Preamble) - e.received_bytes, MSG_DONTWAIT);
    if (received < 0) return false;
    e.received_bytes += static_cast<size_t>(received);
    const bool says_magic = e.received_bytes < sizeof(e.ours.magic) || e.theirs.magic == Preamble().magic;
    if (received == 0 || !says_magic) e.problem = kNotEncrypted;
    if (e.problem != nullptr) return errno = EPROTO, false;
  }
  if (e.theirs.word == e.ours.word || !derive_keys()) e.problem = kNotEncrypted;
  return e.problem == nullptr || (errno = EPROTO, false);
}

ssize_t Socket::send_now(const void* data, size_t length_bytes) {
  if (encryption_ == nullptr) return ::send(fd_.get(), data, length_bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (encryption_->stream == nullptr && !begin_encryption()) return -1;
  return encryption_->stream->send(fd_.get(), data, length_bytes);
}

ssize_t Socket::receive_now(void* data, size_t length_bytes) {
  if (encryption_ == nullptr) return ::recv(fd_.get(), data, length_bytes, MSG_DONTWAIT);
  if (encryption_->stream == nullptr && !begin_encryption()) return -1;
  const ssize_t received = encryption_->stream->receive(fd_.get(), data, length_bytes);
  if (received < 0 && errno == EBADMSG) encryption_->problem = kNotGenuine;
  return received;
}

Error Socket::fail_moving(const char* what) {
  if (is_silent_) return Error{Status::kRemote, errno};
  if (explain_end() == nullptr) return fail_peer(peer_, errno, what);
  return fail(Status::kRemote, "socket: peer %s: %s", describe(peer_).c_str(), explain_end());
}

Result<bool> Socket::send_all(const void* data, size_t length_bytes, size_t& offset_bytes) {
  while (offset_bytes < length_bytes) {
    const char* next = static_cast<const char*>(data) + offset_bytes;
    const ssize_t sent = send_now(next, length_bytes - offset_bytes);
    if (sent < 0 && is_not_now(errno)) return false;
    if (sent < 0) return fail_moving("cannot send");
    offset_bytes += static_cast<size_t>(sent);
  }
  return true;
}

Result<bool> Socket::receive_exact(void* data, size_t length_bytes, size_t& offset_bytes) {
  while (offset_bytes < length_bytes) {
    char* next = static_cast<char*>(data) + offset_bytes;
    const ssize_t received = receive_now(next, length_bytes - offset_bytes);
    if (received < 0 && is_not_now(errno)) return false;
    if (received < 0) return fail_moving("cannot receive");
    if (received == 0 && is_silent_) return Error{Status::kRemote, 0};
    if (received == 0) return fail_peer_closed(peer_, offset_bytes, length_bytes);
    offset_bytes += static_cast<size_t>(received);
  }
  return true;
}

size_t Socket::send_some(const void* data, size_t length_bytes) {
  const ssize_t sent = send_now(data, length_bytes);
  return sent < 0 ? 0 : static_cast<size_t>(sent);
}

size_t Socket::receive_some(void* data, size_t length_bytes) {
  const ssize_t received = receive_now(data, length_bytes);
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
  if (is_spoilt()) return true;  // its data is no longer trusted
  pollfd request{fd_.get(), POLLRDHUP, 0};
  return ::poll(&request, 1, 0) > 0;  // POLLHUP and POLLERR are always reported
}

Result<Listener> Listener::open() {
  const Result<std::vector<InterfaceAddress>> candidates = list_interface_addresses();
  if (!candidates) return candidates.error();
  const std::string& filter = parameters().socket_ifname;
  const std::optional<InterfaceAddress> selected = select_interface(*candidates, filter);
  if (selected) {
    FreePorts& ports = get_free_ports();
    const SocketAddress wanted = ports.take(selected->address);
    auto listener = wanted.port != 0 ? try_open_at(wanted) : open_at(wanted);
    // Another process has taken the port.
    if (!listener && wanted.port != 0) listener = open_at(selected->address);
    if (!listener) return ports.release({}), listener.error();
    listener->port_ = std::shared_ptr<const void>(
        &ports, [&ports, address = listener->address_](const void*) { ports.release(address); });
    return listener;
  }
  std::string names;
  for (const InterfaceAddress& candidate : *candidates) names += " " + candidate.name;
  return fail(
      Status::kInvalidUsage,
      "socket: there is no interface to listen on, because %s matches none of the interfaces that are up:%s",
      filter.empty() ? "the default" : ("VERBENA_SOCKET_IFNAME " + filter).c_str(), names.c_str());
}

Result<Listener> Listener::open_at(const SocketAddress& address) {
  auto listener = try_open_at(address);
  if (listener) return listener;
  const Error error = listener.error();
  if (error.status == Status::kInvalidArgument)
    return fail(error.status, "socket: cannot listen, because no address was given");
  return fail_errno(error.status, error.errno_value, "socket: cannot listen at %s",
                    describe(address).c_str());
}

// Fails without a log line.
Result<Listener> Listener::try_open_at(const SocketAddress& address) {
  const std::optional<SystemAddress> wanted = to_system(address);
  if (!wanted) return Error{Status::kInvalidArgument};
  Listener result;
  result.fd_ = create_tcp(*wanted);
  SystemAddress bound;
  bound.length_bytes = sizeof bound.storage;
  share_port_with_connections(result.fd());
  if (!result.fd_ || ::bind(result.fd(), as_sockaddr(*wanted), wanted->length_bytes) != 0 ||
      ::listen(result.fd(), kBacklogConnections) != 0 ||
      ::getsockname(result.fd(), reinterpret_cast<sockaddr*>(&bound.storage), &bound.length_bytes) != 0) {
    return Error{Status::kSystem, errno};
  }
  result.address_ = from_system(as_sockaddr(bound)).value_or(address);
  return result;
}

Result<std::optional<Socket>> Listener::accept() {
  SystemAddress peer;
  peer.length_bytes = sizeof peer.storage;
  FileDescriptor fd(::accept4(fd_.get(), reinterpret_cast<sockaddr*>(&peer.storage), &peer.length_bytes,
                              SOCK_NONBLOCK | SOCK_CLOEXEC));
  const int error = fd ? 0 : errno;
  is_out_of_room_ = is_short_of_room(error);
  if (!fd) {
    if (is_not_now(error) || is_gone_already(error)) return std::optional<Socket>();
    const bool has_logged = std::exchange(logged_error_, error) == error;
    if (is_out_of_room_) {
      if (!has_logged)
        log_warn(
            "socket: cannot accept a connection at %s now (errno %d) and will retry. If the error persists, "
            "raise `ulimit -n`",
            describe(address_).c_str(), error);
      return std::optional<Socket>();
    }
    if (has_logged) return Error{Status::kSystem, error};
    return fail_errno(Status::kSystem, error, "socket: cannot accept a connection at %s",
                      describe(address_).c_str());
  }
  logged_error_ = 0;
  const SocketAddress address = from_system(as_sockaddr(peer)).value_or(SocketAddress());
  return std::optional<Socket>(Socket(std::move(fd), address));
}

}  // namespace verbena::base
