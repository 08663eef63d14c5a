// A control socket, shared by all connections between this process and one other. The first connection's
// handshake makes it; for the next the listening end offers it (protocol/handshake.h), and that handshake's
// own socket is closed. It lives while a connection or a handshake uses it. When it closes, all connections
// on it learn that their peer is gone; when one end of one of them closes, a frame tells the other end.
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

// How long one end's handshake waits for another of the same two processes that is making a socket.
inline constexpr int64_t kMaxPlacingMs = 200;

// Of this process; a forked child has another one.
base::Result<ProcessId> find_process_id();

class PeerSocket {
 public:
  // One connection's end. Called by any thread with the socket's mutex held: it must not call the socket.
  class User {
   public:
    virtual void take(std::span<const uint8_t> bytes) = 0;
    virtual void note_closed() = 0;  // by the peer
   protected:
    ~User() = default;
  };

  // For a handshake, which uses `socket()` alone until it says open().
  static std::shared_ptr<PeerSocket> create(base::Socket socket, ConnectionEnd end);
  PeerSocket(base::Socket socket, ConnectionEnd end);
  ~PeerSocket();

  uint64_t id() const { return id_; }  // see PeerSockets::add
  ConnectionEnd end() const { return end_; }
  base::Socket& socket() { return socket_; }
  // The handshake has sent all that it has to send. From here on others may use it, and the handshake only
  // receive_ready().
  void open() { is_open_.store(true, std::memory_order_release); }
  // The handshake is over. Such sockets are offered before others, whose callers may never go on.
  void stand() {
    is_standing_.store(true, std::memory_order_relaxed);
    open();
  }
  bool is_standing() const { return is_standing_.load(std::memory_order_relaxed); }
  bool is_open() const { return is_open_.load(std::memory_order_acquire); }
  // The last message of the handshake, at the listening end. An event thread may have read it already, for
  // another connection.
  base::Result<bool> receive_ready(protocol::Ready& ready);

  // False: the connection is on this socket already. A socket that has closed tells the user so at once.
  bool add(uint64_t connection, User* user);
  // Tells the peer. Once this returns no thread calls the user any more.
  void remove(uint64_t connection);
  // While nobody calls the user: what the user shares with the event thread.
  std::mutex& mutex() { return mutex_; }
  // From here on the event thread reads it.
  base::Outcome start();
  void send(uint64_t connection, std::span<const uint8_t> bytes);
  // What did not fit the kernel's buffer. The event thread does so too as soon as there is room.
  void push();
  // Takes what has come, for all connections: whoever waits for it need not wait for the event thread.
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
  // By PeerSockets, before it is open.
  ProcessId peer_{};
  uint64_t id_ = 0;
  bool is_registered_ = false;
  std::atomic<bool> is_open_{false}, is_standing_{false}, is_closed_{false}, has_unsent_{false};

  std::mutex mutex_;     // guards all below once it is open; before, all but the socket
  base::Socket socket_;  // the handshake's alone before
  bool is_started_ = false;
  protocol::Ready ready_{};  // receiving end
  size_t ready_bytes_ = 0;
  std::unordered_map<uint64_t, User*> users_;
  std::vector<uint8_t> unsent_;
  protocol::FrameHeader incoming_{};  // the frame that is coming
  size_t header_bytes_ = 0;           // of it
  uint32_t left_bytes_ = 0;           // behind its header
};

// Those of this process. Thread safe.
class PeerSockets {
 public:
  static PeerSockets& instance();

  // `socket` is, or is about to be, one to `peer`. `id`: of its handshake, which the connecting end does not
  // know at first: 0, and once more when it does.
  void add(const std::shared_ptr<PeerSocket>& socket, const ProcessId& peer, uint64_t id);

  struct Choice {
    std::shared_ptr<PeerSocket> socket;  // null: none, so that the handshake's own becomes the connection's
    bool is_late = false;                // one is being made; wait for it, but not for ever
  };
  // What the listening end of a connection offers.
  Choice find_to_offer(const ProcessId& peer);
  // The connecting end's end of what it was offered.
  Choice find_offered(const ProcessId& peer, uint64_t id);

  bool is_idle();  // for base::Lasting

 private:
  friend class PeerSocket;
  using Key = std::tuple<ProcessId, uint64_t, const PeerSocket*>;

  static Key name(const PeerSocket& socket) { return {socket.peer_, socket.id_, &socket}; }
  void remove(const PeerSocket& socket);
  bool is_calling(const ProcessId& peer) const;  // under the mutex

  std::mutex mutex_;
  std::map<Key, std::weak_ptr<PeerSocket>> sockets_;
};

}  // namespace verbena::transport
