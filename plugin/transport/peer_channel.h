// One connection's part of the control socket (peer_socket.h). Usually it carries nothing any more; that the
// peer closes is how an end learns, without a system call of its own, that the other one is gone. When a
// queue pair has failed it carries recovery records.
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
  // Of the connection whose handshake has this id. Null: `socket` has one with the same already.
  static std::unique_ptr<PeerChannel> join(std::shared_ptr<PeerSocket> socket, uint64_t id, std::string peer);
  ~PeerChannel();
  // Once, before anything is sent or received: what proves the records.
  void start(RecordAuth auth) { auth_ = std::move(auth); }
  PeerSocket& socket() { return *socket_; }
  // From here on the process's event thread wakes `owner` when something comes or the peer closes.
  base::Outcome watch(ProgressToken* owner);
  // Before the owner retires.
  void unwatch();

  bool is_closed() const { return closed_.load(std::memory_order_acquire); }
  // Only for the slow path. True once the peer has been gone for VERBENA_PEER_GRACE_MS: what it sent before
  // has arrived by then.
  bool is_grace_over();
  const std::string& peer() const { return peer_; }

  // The rest is for whoever has the turn. What does not fit the socket now leaves with a later call, of any
  // connection on it, or by the event thread.
  void send(const protocol::RecoveryRecord& record, const protocol::ArrivedRecord* arrived = nullptr);
  void push() { socket_->push(); }
  bool has_unsent() const { return socket_->has_unsent(); }
  // The next record, once it is here whole; `*arrived` points to what came with it, until the next call. Null
  // if there is none. A record whose proof does not hold has no kind.
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
  ProgressToken* owner_ = nullptr;  // while watched; under the socket's mutex
  std::vector<uint8_t> arrived_;    // and not yet received; under the socket's mutex
  std::atomic<bool> closed_{false};
  int64_t noticed_ns_ = 0;              // when is_grace_over() first saw it
  std::unique_ptr<Incoming> incoming_;  // made when something comes
  size_t received_bytes_ = 0;           // of *incoming_
};

}  // namespace verbena::transport
