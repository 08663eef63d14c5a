// TCP connections over which the endpoints of a group notify each other of failed queue pairs. A connection
// is opened when there is a record to send, and closed when it was idle for long. Each end sends on the
// connections that it has opened, and receives on those that peers have opened, so two ends that connect at
// the same time do not conflict. The connecting end authenticates itself with the job's key, or with the
// secret in the address that it was sent. Only the driver calls these functions, except know().
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/socket.h"
#include "base/status.h"
#include "bootstrap/callers.h"
#include "bootstrap/frame_link.h"
#include "protocol/lane_record.h"

namespace verbena::transport {

class RecordLinks {
 public:
  static base::Result<std::unique_ptr<RecordLinks>> open(uint32_t rank, uint32_t count_ranks);
  ~RecordLinks();
  RecordLinks(const RecordLinks&) = delete;
  RecordLinks& operator=(const RecordLinks&) = delete;

  // The address that peers are sent.
  const base::SocketAddress& address() const { return callers_.address(); }
  const bootstrap::Nonce& nonce() const { return nonce_; }
  const bootstrap::Nonce& secret() const { return secret_; }
  // Sets a peer's address and secrets. Call it before sending to the peer. Any thread may call it.
  void know(uint32_t peer, const base::SocketAddress& address, const bootstrap::Nonce& nonce,
            const bootstrap::Nonce& secret);

  void send(uint32_t peer, const protocol::LaneRecord& record);
  struct Arrival {
    uint32_t peer;
    protocol::LaneRecord record;
  };
  // Returns the next record. The records of one peer come in order.
  std::optional<Arrival> take();
  // Returns whether the peer's process is gone, as far as a connection to it has shown.
  bool is_gone(uint32_t peer) const { return peers_[peer].is_gone; }

  // Returns whether a peer connects. Once this is true, call advance() until is_idle().
  bool has_caller() const { return has_caller_.load(std::memory_order_acquire); }
  bool is_idle() const {
    return callers_.is_empty() && from_peers_.empty() && count_connected_ == 0 && !has_caller();
  }
  // Sends and receives all data that does not block.
  void advance(int64_t now_ns);

 private:
  struct Peer {
    base::SocketAddress address;
    bootstrap::Nonce nonce{}, secret{};
    std::unique_ptr<bootstrap::FrameLink> link;  // the connection to the peer
    std::deque<bootstrap::Record> unsent;        // records that wait for the connection
    int64_t used_at_ns = 0;
    bool is_gone = false;
  };

  RecordLinks(uint32_t rank, uint32_t count_ranks, base::Listener listener, bootstrap::Proof proof)
      : rank_(rank),
        callers_(std::move(listener), std::move(proof), "endpoint of rank " + std::to_string(rank)),
        peers_(count_ranks) {}
  base::Outcome watch();
  bootstrap::Callers::Verdict judge(const bootstrap::Hello& hello) const;
  void hear(bootstrap::FrameLink& link);
  void advance_own(uint32_t peer, int64_t now_ns);
  void lose(uint32_t peer, const std::string& problem);

  const uint32_t rank_;
  bootstrap::Callers callers_;
  bootstrap::Nonce nonce_{}, secret_{};
  std::atomic<bool> has_caller_{false};  // set by the event thread
  std::mutex mutex_;                     // guards the data that know() writes
  std::vector<Peer> peers_;
  uint32_t count_connected_ = 0;  // number of connections to peers
  std::vector<std::unique_ptr<bootstrap::FrameLink>> from_peers_;
  std::deque<Arrival> arrived_;
};

}  // namespace verbena::transport
