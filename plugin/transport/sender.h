// The sending end of a connection. A message is cut into chunks that may take any rail:
//   staged: at once, into whatever page the receiver's shared receive queue offers, as far as credits reach;
//   direct: once the receiver has granted an address, by RDMA write to that place.
// Messages leave in the order of posting. One thread at a time; nothing here allocates, locks or logs unless
// it fails.
#pragma once

#include <array>
#include <memory>

#include "base/status.h"
#include "protocol/chunking.h"
#include "protocol/credits.h"
#include "protocol/handshake.h"
#include "transport/control_block.h"
#include "transport/link.h"
#include "transport/peer_watch.h"
#include "transport/registration.h"
#include "transport/request.h"
#include "transport/statistics.h"
#include "transport/wait_monitor.h"

namespace verbena::transport {

class Sender;

struct SendMessage : Request {
  enum class Path : uint8_t { kUndecided, kStaged, kDirect };
  bool in_use = false;
  bool may_stage = false;
  Path path = Path::kUndecided;
  const uint8_t* data = nullptr;
  const Registration* memory = nullptr;
  uint64_t length_bytes = 0;
  uint32_t sequence = 0;
  uint32_t next_chunk = 0;   // chunks before it are posted
  uint32_t outstanding = 0;  // signaled work requests without a completion yet
  protocol::ChunkPlan plan;
  protocol::Grant grant;

  bool is_posted() const { return path != Path::kUndecided && next_chunk == plan.count; }
};

class Sender {
 public:
  // What the receiver said in its Welcome, and our own smallest stripe.
  struct Peer {
    std::array<uint8_t, protocol::kMaxQueuePairs> rail_of{};  // the receiver's rail of each queue pair
    uint32_t page_bytes = 0;
    std::array<uint32_t, protocol::kMaxQueuePairs> window{};
    uint64_t staging_threshold_bytes = 0;
    uint64_t min_stripe_bytes = 65536;
    bool staging = false;
  };

  Sender(Link link, ControlMemory control, const Peer& peer, std::unique_ptr<PeerWatch> watch);

  // Null in `*request` if the ring is full. `may_stage`: the caller believes that the receiving kernel
  // unpacks.
  base::Outcome post(const void* data, uint64_t length_bytes, const Registration* memory, bool may_stage,
                     Request** request);
  // Writes *done; a request that is done is free again. Requests may be tested in any order.
  base::Outcome test(SendMessage& message, bool* done);

  const Statistics& statistics() const { return statistics_; }

 private:
  base::Outcome progress();
  base::Outcome absorb_completions();
  base::Outcome absorb_credits();
  base::Outcome post_chunks(SendMessage& message);
  bool decide_path(SendMessage& message);
  base::Outcome check_grant(const SendMessage& message);
  base::Outcome post_staged(SendMessage& message);
  base::Outcome post_staged_run(SendMessage& message, uint32_t queue_pair, uint32_t count);
  base::Outcome post_direct(SendMessage& message);
  base::Outcome check_wait(const SendMessage& message);
  base::Outcome stick(base::Error error);
  void count(const SendMessage& message);

  ControlMemory control_;  // before the link: the peer writes there until the queue pairs are gone
  Link link_;
  Peer peer_;
  std::unique_ptr<PeerWatch> watch_;
  protocol::SenderCredits credits_;
  std::array<SendMessage, protocol::kMessageRing> ring_;
  uint32_t next_ = 0;      // sequence number of the next message
  uint32_t posting_ = 0;   // messages before it are posted whole
  uint32_t consumed_ = 0;  // as the receiver told
  uint32_t rotation_ = 0;  // queue pair that the next staged message starts on
  uint32_t max_staged_chunks_ = 0;
  WaitMonitor wait_;
  base::Outcome sticky_;
  Statistics statistics_;
};

}  // namespace verbena::transport
