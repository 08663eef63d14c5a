// One connection's share of the control socket (peer_socket.h). Usually the socket is silent. When it closes,
// each end learns that its peer is gone, without a system call of its own. When a queue pair has failed, the
// socket carries recovery records.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "protocol/recovery_record.h"
#include "transport/handshake_auth.h"
#include "transport/peer_socket.h"
#include "transport/service/progress_token.h"

namespace verbena::transport {

class PeerChannel final : private PeerSocket::User {
 public:
  // Joins the connection with this handshake id to the socket. Returns null if another connection with the
  // same id uses `socket`.
  static std::unique_ptr<PeerChannel> join(std::shared_ptr<PeerSocket> socket, uint64_t id, std::string peer);
  ~PeerChannel();
  // Sets the authentication of records. Call it once, before anything is sent or received.
  void start(RecordAuth auth) { auth_ = std::move(auth); }
  PeerSocket& socket() { return *socket_; }
  // From this call on, the process's event thread wakes `owner` when data arrives or the peer closes.
  base::Outcome watch(ProgressToken* owner);
  // Ends the watch. Call it before the owner retires.
  void unwatch();

  bool is_closed() const { return closed_.load(std::memory_order_acquire); }
  // Returns true once the peer has been gone for VERBENA_PEER_GRACE_MS. By then all data that the peer sent
  // has arrived. For slow paths only.
  bool is_grace_over();
  const std::string& peer() const { return peer_; }

  // The functions below need the progress token. If the socket's buffer is full, the rest of a record is sent
  // by a later call for any connection of the socket, or by the event thread.
  void send(const protocol::RecoveryRecord& record, const protocol::ArrivedRecord* arrived = nullptr);
  void push() { socket_->push(); }
  bool has_unsent() const { return socket_->has_unsent(); }
  // Returns the next complete record, or null if there is none. `*arrived` points to the record's second part
  // and is valid until the next call. If the MAC of a record is wrong, its kind is 0.
  const protocol::RecoveryRecord* receive(const protocol::ArrivedRecord** arrived);

 private:
  struct Incoming {
    protocol::RecoveryRecord record;
    protocol::ArrivedRecord arrived;
    uint8_t mac[base::kMacBytes];
  };

  PeerChannel(std::shared_ptr<PeerSocket> socket, uint64_t id, std::string peer)
      : socket_(std::move(socket)), id_(id), peer_(std::move(peer)) {}
  void take(std::span<const uint8_t> bytes) override;
  void note_closed() override;
  bool fill(void* target, size_t begin_bytes, size_t length_bytes);

  const std::shared_ptr<PeerSocket> socket_;
  const uint64_t id_;
  const std::string peer_;
  bool is_joined_ = false;
  RecordAuth auth_;
  ProgressToken* owner_ = nullptr;  // set while watched; guarded by the socket's mutex
  std::vector<uint8_t> arrived_;    // not yet received; guarded by the socket's mutex
  std::atomic<bool> closed_{false};
  int64_t noticed_ns_ = 0;              // when is_grace_over() first saw the peer gone
  std::unique_ptr<Incoming> incoming_;  // created when data arrives
  size_t received_bytes_ = 0;           // bytes of *incoming_
};

}  // namespace verbena::transport
