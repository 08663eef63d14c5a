// A control socket, which all connections between this process and one other process share. The handshake of
// the first connection creates the socket. For later connections, the listening end offers it
// (protocol/handshake.h), and the socket of their own handshake is closed. The control socket lives while a
// connection or a handshake uses it. When it closes, all its connections learn that their peer is gone. When
// one end closes a single connection, a frame notifies the other end.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "base/socket.h"
#include "base/status.h"
#include "protocol/handshake.h"
#include "protocol/peer_frame.h"

namespace verbena::transport {

using base::ConnectionEnd;
using protocol::ProcessId;

// How long a handshake waits for another handshake of the same two processes that is creating a socket.
inline constexpr int64_t kMaxPlacingMs = 200;

// Returns the id of this process. A forked child has another id.
base::Result<ProcessId> find_process_id();

class PeerSocket {
 public:
  // One end of a connection. Any thread may call the user, with the socket's mutex held. The user must not
  // call the socket.
  class User {
   public:
    virtual void take(std::span<const uint8_t> bytes) = 0;
    virtual void note_closed() = 0;  // called when the peer closes
   protected:
    ~User() = default;
  };

  // For a handshake, which is the only user of `socket()` until it calls open().
  static std::shared_ptr<PeerSocket> create(base::Socket socket, ConnectionEnd end);
  PeerSocket(base::Socket socket, ConnectionEnd end);
  ~PeerSocket();

  uint64_t id() const { return id_; }  // see PeerSockets::add
  ConnectionEnd end() const { return end_; }
  base::Socket& socket() { return socket_; }
  // Call this when the handshake has sent its last message. From then on other connections may use the
  // socket, and the handshake may only call receive_ready().
  void open() { is_open_.store(true, std::memory_order_release); }
  // Call this when the handshake is complete. Such sockets are offered first, because the handshake of
  // another socket may never complete.
  void stand() {
    is_standing_.store(true, std::memory_order_relaxed);
    open();
  }
  bool is_standing() const { return is_standing_.load(std::memory_order_relaxed); }
  bool is_open() const { return is_open_.load(std::memory_order_acquire); }
  // Receives the last message of the handshake, at the listening end. An event thread may have read the
  // message already, for another connection.
  base::Result<bool> receive_ready(protocol::Ready& ready);

  // Returns false if the connection already uses this socket. If the socket is closed, notifies the user at
  // once.
  bool add(uint64_t connection, User* user);
  // Removes the connection and notifies the peer. After the call returns, no thread calls the user.
  void remove(uint64_t connection);
  // While this mutex is held, no thread calls the user. It guards data that the user shares with the event
  // thread.
  std::mutex& mutex() { return mutex_; }
  // From this call on, the event thread reads the socket.
  base::Outcome start();
  void send(uint64_t connection, std::span<const uint8_t> bytes);
  // Sends bytes that did not fit into the kernel's buffer. The event thread also does so as soon as there is
  // space.
  void push();
  // Reads and processes the bytes that have arrived, for all connections. A caller need not wait for the
  // event thread.
  void read();
  bool has_unsent() const { return has_unsent_.load(std::memory_order_relaxed); }
  bool is_closed() const { return is_closed_.load(std::memory_order_relaxed); }

 private:
  friend class PeerSockets;

  void append(uint64_t connection, protocol::FrameKind kind, std::span<const uint8_t> bytes);
  void push_now();
  bool read_ready();
  bool digest(std::span<const uint8_t> bytes);
  void close_all();

  const ConnectionEnd end_;
  // Set by PeerSockets before the socket is open.
  ProcessId peer_{};
  uint64_t id_ = 0;
  bool is_registered_ = false;
  std::atomic<bool> is_open_{false}, is_standing_{false}, is_closed_{false}, has_unsent_{false};

  std::mutex mutex_;     // guards the members below once the socket is open; before, all but the socket
  base::Socket socket_;  // before open(), only the handshake uses it
  bool is_started_ = false;
  protocol::Ready ready_{};  // receiving end
  size_t ready_bytes_ = 0;
  std::unordered_map<uint64_t, User*> users_;
  std::vector<uint8_t> unsent_;
  protocol::FrameHeader incoming_{};  // header of the frame being received
  size_t header_bytes_ = 0;           // bytes of the header received so far
  uint32_t left_bytes_ = 0;           // bytes of the frame not yet received
};

// The control sockets of this process. Thread safe.
class PeerSockets {
 public:
  static PeerSockets& instance();

  // Adds a socket that connects, or is about to connect, to `peer`. `id` is the id of the socket's handshake.
  // The connecting end does not know the id at first: it passes 0, and calls add() again once it knows the
  // id.
  void add(const std::shared_ptr<PeerSocket>& socket, const ProcessId& peer, uint64_t id);

  struct Choice {
    std::shared_ptr<PeerSocket> socket;  // null: use the socket of this handshake
    bool is_late = false;                // a socket is being created; wait for it, for a limited time
  };
  // Returns the socket that the listening end of a connection offers.
  Choice find_to_offer(const ProcessId& peer);
  // Returns the connecting end's socket for the offer of the listening end.
  Choice find_offered(const ProcessId& peer, uint64_t id);

  bool is_idle();  // called by base::Lasting

 private:
  friend class PeerSocket;
  using Key = std::tuple<ProcessId, uint64_t, const PeerSocket*>;

  static Key name(const PeerSocket& socket) { return {socket.peer_, socket.id_, &socket}; }
  void remove(const PeerSocket& socket);
  bool is_calling(const ProcessId& peer) const;  // needs the mutex

  std::mutex mutex_;
  std::map<Key, std::weak_ptr<PeerSocket>> sockets_;
};

}  // namespace verbena::transport
