// How the endpoints of a group tell each other that a queue pair has failed: TCP connections, made when there
// is something to tell and closed when there has been nothing for long. Each end sends on the one that it has
// made itself and takes what comes on those that were made to it, so that two that call at the same time do
// not meet. A caller proves the job's key, or the secret in the address that it was told. The driver's, but
// for know().
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

  // What peers are told.
  const base::SocketAddress& address() const { return callers_.address(); }
  const bootstrap::Nonce& nonce() const { return nonce_; }
  const bootstrap::Nonce& secret() const { return secret_; }
  // What a peer has told, before anything is sent to it. Any thread.
  void know(uint32_t peer, const base::SocketAddress& address, const bootstrap::Nonce& nonce,
            const bootstrap::Nonce& secret);

  void send(uint32_t peer, const protocol::LaneRecord& record);
  struct Arrival {
    uint32_t peer;
    protocol::LaneRecord record;
  };
  // The next record that has come; those of one peer in order.
  std::optional<Arrival> take();
  // Its process has gone, as far as a connection of ours has found out.
  bool is_gone(uint32_t peer) const { return peers_[peer].is_gone; }

  // Whether somebody calls; once it is true, advance() until is_idle().
  bool has_caller() const { return has_caller_.load(std::memory_order_acquire); }
  bool is_idle() const {
    return callers_.is_empty() && from_peers_.empty() && count_connected_ == 0 && !has_caller();
  }
  // Moves everything that can move now.
  void advance(int64_t now_ns);

 private:
  struct Peer {
    base::SocketAddress address;
    bootstrap::Nonce nonce{}, secret{};
    std::unique_ptr<bootstrap::FrameLink> link;  // ours to it
    std::deque<bootstrap::Record> unsent;        // until it is connected
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
  std::mutex mutex_;                     // guards what know() writes
  std::vector<Peer> peers_;
  uint32_t count_connected_ = 0;  // links of ours
  std::vector<std::unique_ptr<bootstrap::FrameLink>> from_peers_;
  std::deque<Arrival> arrived_;
};

}  // namespace verbena::transport
