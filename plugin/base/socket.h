// TCP for the out-of-band handshake and for noticing that a peer has gone. No call blocks: what is not ready
// yet answers false or empty and is asked again; the caller keeps the deadline.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "base/file_descriptor.h"
#include "base/socket_address.h"
#include "base/status.h"

namespace verbena::base {

class Socket {
 public:
  Socket() = default;
  // Takes over a connected descriptor that is non-blocking.
  Socket(FileDescriptor fd, const SocketAddress& peer);

  // Begins to connect; finish_connect() says when it is done. `peer` may come from an untrusted handle.
  static Result<Socket> start_connect(const SocketAddress& peer);
  // The same for a peer that may not be there yet: what fails is not logged, here and in finish_connect().
  static Result<Socket> try_connect(const SocketAddress& peer);
  // True once connected.
  Result<bool> finish_connect();

  // Move bytes [offset, length) as far as possible now and advance `offset`; true once offset == length.
  // A peer that has closed is Status::kRemote.
  Result<bool> send_all(const void* data, size_t length_bytes, size_t& offset_bytes);
  Result<bool> receive_exact(void* data, size_t length_bytes, size_t& offset_bytes);

  // What can be moved now, in bytes; 0: nothing can, or the peer is gone, which is no error here.
  size_t send_some(const void* data, size_t length_bytes);
  size_t receive_some(void* data, size_t length_bytes);
  // A peer whose host vanishes counts as closed after this long.
  void limit_silence(int64_t limit_ms);

  // True once the peer has closed or reset, even when unread data is left.
  bool is_peer_closed() const;

  int fd() const { return fd_.get(); }
  const SocketAddress& peer() const { return peer_; }
  explicit operator bool() const { return static_cast<bool>(fd_); }

 private:
  FileDescriptor fd_;
  SocketAddress peer_;
  bool is_quiet_ = false;
};

class Listener {
 public:
  // On the interface that VERBENA_SOCKET_IFNAME selects, any free port; reachable through that address only.
  static Result<Listener> open();
  // A port that is not 0 may be one that connections of an earlier listener still linger at.
  static Result<Listener> open_at(const SocketAddress& address);

  Listener() = default;
  // Where peers connect to.
  const SocketAddress& address() const { return address_; }
  // A connected socket, or empty if nobody is waiting.
  Result<std::optional<Socket>> accept();
  int fd() const { return fd_.get(); }

 private:
  FileDescriptor fd_;
  SocketAddress address_;
};

}  // namespace verbena::base
