// TCP connections for the handshake, and for detecting that a peer is gone. No call blocks. A call that
// cannot finish yet returns false or an empty value; the caller calls again, and is responsible for the
// deadline.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <memory>
#include <optional>

#include "base/file_descriptor.h"
#include "base/hmac.h"
#include "base/socket_address.h"
#include "base/status.h"

namespace verbena::base {

// The sender is the end that connected.
enum class ConnectionEnd : uint8_t { kSender = 1, kReceiver = 2 };

class Socket {
 public:
  Socket();
  Socket(Socket&&) noexcept;
  Socket& operator=(Socket&&) noexcept;
  ~Socket();
  // Takes ownership of a connected, non-blocking descriptor.
  Socket(FileDescriptor fd, const SocketAddress& peer);

  // Starts to connect; finish_connect() returns the result. `peer` may come from an untrusted handle.
  static Result<Socket> start_connect(const SocketAddress& peer);
  // Like connect(), for a peer that may not listen yet: neither this function nor finish_connect() logs a
  // failure.
  static Result<Socket> try_connect(const SocketAddress& peer);
  // Returns true once connected.
  Result<bool> finish_connect();

  // Encrypts all data from now on, with keys derived from `key` and from a random word of each end. Both ends
  // must call it before the first byte. If the peer does not encrypt, or uses another key, the first send or
  // receive fails.
  Outcome encrypt(std::shared_ptr<const HmacKey> key, ConnectionEnd end);
  // Returns true while the peer's part of the key is missing: nothing can be sent yet.
  bool awaits_peer() const;
  // Explains why no data moves, or why the peer closed, if the encryption is the reason; otherwise returns
  // null.
  const char* explain_end() const;
  // Returns true if data has arrived that the peer cannot have sent. The connection is then unusable,
  // although the peer has not closed it.
  bool is_spoilt() const;

  // Move as many of the bytes [offset, length) as possible now, and advance `offset`. Return true once offset
  // == length. Fail with Status::kRemote if the peer has closed.
  Result<bool> send_all(const void* data, size_t length_bytes, size_t& offset_bytes);
  Result<bool> receive_exact(void* data, size_t length_bytes, size_t& offset_bytes);

  // If set, failures of send_all and receive_exact are not logged; the caller logs them.
  void set_silent(bool is_silent) { is_silent_ = is_silent; }

  // Move as many bytes as possible now, and return their number. Return 0 if none can be moved or the peer is
  // gone, which is not an error here.
  size_t send_some(const void* data, size_t length_bytes);
  size_t receive_some(void* data, size_t length_bytes);
  // Sets the time after which a peer counts as gone if its host does not answer.
  void limit_silence(int64_t limit_ms);

  // Returns true once the peer has closed or reset, even when unread data is left.
  bool is_peer_closed() const;

  int fd() const { return fd_.get(); }
  const SocketAddress& peer() const { return peer_; }
  explicit operator bool() const { return static_cast<bool>(fd_); }

 private:
  struct Encryption;
  ssize_t send_now(const void* data, size_t length_bytes);
  ssize_t receive_now(void* data, size_t length_bytes);
  bool begin_encryption();
  bool derive_keys();
  Error fail_moving(const char* what);

  FileDescriptor fd_;
  SocketAddress peer_;
  bool is_quiet_ = false, is_silent_ = false;
  std::unique_ptr<Encryption> encryption_;  // null: none
};

class Listener {
 public:
  // Listens on a free port, at the address of the interface that VERBENA_SOCKET_IFNAME selects. Reuses ports
  // of this process's closed listeners, even while connections that they accepted are open. Otherwise each
  // listener would use up one of the host's 28,000 ports, and the kernel would take longer each time to find
  // a free one.
  static Result<Listener> open();
  // Listens at an address. If the port is not 0, connections of an earlier listener may still be in
  // TIME_WAIT.
  static Result<Listener> open_at(const SocketAddress& address);

  Listener() = default;
  // The address to which peers connect.
  const SocketAddress& address() const { return address_; }
  // Returns a connected socket. Returns an empty value if no connection is waiting, or if the process or the
  // host has no free descriptor or memory for it. A repeated error is logged once.
  Result<std::optional<Socket>> accept();
  // Returns whether the last accept() found a client but no free descriptor or memory. poll() would then
  // report the listener as readable at once, repeatedly.
  bool is_out_of_room() const { return is_out_of_room_; }
  int fd() const { return fd_.get(); }

 private:
  static Result<Listener> try_open_at(const SocketAddress& address);

  std::shared_ptr<const void> port_;  // released after the descriptor is closed
  FileDescriptor fd_;
  SocketAddress address_;
  int logged_error_ = 0;
  bool is_out_of_room_ = false;
};

}  // namespace verbena::base
