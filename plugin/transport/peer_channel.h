// The control socket of an established connection. Usually it carries nothing any more; that it closes is how
// an end learns, without a system call of its own, that the other one is gone. When a queue pair has failed
// it carries recovery records.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/socket.h"
#include "base/status.h"
#include "protocol/recovery_record.h"
#include "transport/handshake_auth.h"
#include "transport/service/progress_token.h"

namespace verbena::transport {

class PeerChannel {
 public:
  static std::unique_ptr<PeerChannel> start(base::Socket socket, std::string peer, RecordAuth auth);
  ~PeerChannel();
  // From here on the process's event thread wakes `owner` when something comes or the peer closes.
  base::Outcome watch(ProgressToken* owner);
  // Before the owner retires.
  void unwatch();

  bool is_closed() const { return closed_.load(std::memory_order_acquire); }
  // Only for the slow path. True once the peer has been gone for VERBENA_PEER_GRACE_MS: what it sent before
  // has arrived by then.
  bool is_grace_over();
  const std::string& peer() const { return peer_; }

  // The rest is for whoever has the turn. What does not fit the socket now leaves with a later call.
  void send(const protocol::RecoveryRecord& record, const protocol::ArrivedRecord* arrived = nullptr);
  void push();
  bool has_unsent() const { return !unsent_.empty(); }
  // The next record, once it is here whole; `*arrived` points to what came with it, until the next call. Null
  // if there is none. A record whose proof does not hold has no kind.
  const protocol::RecoveryRecord* receive(const protocol::ArrivedRecord** arrived);

 private:
  struct Incoming {
    protocol::RecoveryRecord record;
    protocol::ArrivedRecord arrived;
    uint8_t mac[base::kMacBytes];
  };

  PeerChannel() = default;
  bool fill(void* target, size_t begin_bytes, size_t length_bytes);

  base::Socket socket_;
  std::string peer_;
  RecordAuth auth_;
  ProgressToken* owner_ = nullptr;  // while watched
  std::atomic<bool> closed_{false};
  int64_t noticed_ns_ = 0;  // when is_grace_over() first saw it
  std::vector<uint8_t> unsent_;
  std::unique_ptr<Incoming> incoming_;  // made when something comes
  size_t received_bytes_ = 0;           // of *incoming_
};

}  // namespace verbena::transport
