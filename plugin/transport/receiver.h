// The receiving end of a connection. Chunks are matched to messages by number, so they may come on any rail,
// in any order, and before their receive is posted. A message is complete when all its chunks are there:
//   direct: the bytes are in their place already; a slot that a kernel will look at stays empty (cnt 0);
//   staged: with a slot, its pages are described there and the GPU places them; without one (nobody unpacks),
//   the plugin
//           copies them itself, by CPU or by loopback.
// One thread at a time; nothing here allocates, locks or logs unless it fails.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "protocol/arrivals.h"
#include "protocol/credits.h"
#include "protocol/unpack_queue.h"
#include "transport/bounce_pool.h"
#include "transport/link.h"
#include "transport/loopback.h"
#include "transport/peer_watch.h"
#include "transport/registration.h"
#include "transport/request.h"
#include "transport/statistics.h"
#include "transport/wait_monitor.h"

namespace verbena::transport {

// What becomes of a receive on the GPU; nccl/receive_class.h finds it out.
enum class ReceiveClass : uint8_t {
  kUnpacked,  // the kernel advances its head and unpacks
  kSlotOnly,  // the kernel advances its head, the data must be in its place (registered user buffers)
  kNoSlot,    // the kernel does neither (LL, LL128, PAT), or there is none (host memory)
};

struct ReceiveMessage : Request {
  enum class Phase : uint8_t { kFree, kArriving, kMoving, kReady, kReported };
  Phase phase = Phase::kFree;
  bool is_posted = false;
  bool slot_taken = false;
  ReceiveClass receive_class = ReceiveClass::kNoSlot;
  uint32_t sequence = 0;
  uint32_t slot = 0;
  uint32_t first_page = kNoPage, last_page = kNoPage;  // held pages in order of arrival
  uint32_t next_move = kNoPage;                        // next page to copy by loopback
  uint32_t outstanding = 0;                            // loopback operations
  uint32_t rails_to_flush = 0;                         // whose writes to pages in GPU memory are to be pushed
  uint8_t* data = nullptr;
  const Registration* memory = nullptr;
  uint64_t room_bytes = 0;
  protocol::Arrivals arrivals;
};

struct FlushRequest : Request {
  bool in_use = false;
  uint32_t outstanding = 0;
};

class Receiver {
 public:
  // Where the receiver writes its grants and credits, from the sender's Hello.
  struct Peer {
    uint64_t control_address = 0;
    std::array<uint32_t, protocol::kMaxQueuePairs> control_keys{};  // one a queue pair
  };
  // Everything that accept set up. `promised` entries go back to the pool when the receiver goes.
  struct Parts {
    std::shared_ptr<BouncePool> pool;  // before the link: its receive queues outlive the queue pairs
    Link link;
    std::vector<BouncePool::Rail*> rails;  // of the pool, one a local rail
    std::array<uint32_t, protocol::kMaxQueuePairs> promised{};
    std::unique_ptr<BouncePool::UnpackMemory> unpack;  // null: no kernel unpacks here
    std::optional<Loopback> loopback;                  // where GPU memory is involved
    bool flushes = false;             // a real NIC behind GPU memory: writes are pushed by a READ
    bool waits_for_consumed = false;  // the caller will call consume()

    // No chunk lands any more; pages that landed and were not looked at, or were flushed, are posted again;
    // everything promised and taken goes back to the pool.
    void give_back();
  };

  Receiver(Parts parts, const Peer& peer, std::unique_ptr<PeerWatch> watch);
  ~Receiver();

  // Null in `*request` if there is no room now.
  base::Outcome post(void* data, uint64_t length_bytes, const Registration* memory,
                     ReceiveClass receive_class, Request** request);
  base::Outcome test(ReceiveMessage& message, bool* done, uint64_t* bytes);
  // The GPU is done with the message: pages, slot and request are free again.
  base::Outcome consume(ReceiveMessage& message);
  // Makes what arrived in `data` visible to the GPU. Null in `*request`: nothing to wait for.
  base::Outcome flush(const void* data, const Registration* memory, Request** request);
  base::Outcome test_flush(FlushRequest& request, bool* done);

  bool unpacks() const { return parts_.unpack != nullptr; }
  const Statistics& statistics() const { return statistics_; }

 private:
  base::Outcome progress();
  base::Outcome absorb_completions();
  void absorb_chunk(const verbs::Completion& completion, uint32_t queue_pair);
  bool place_chunk(const verbs::Completion& completion, uint32_t queue_pair);
  void hold_page(ReceiveMessage& message, const verbs::Completion& completion, uint16_t chunk,
                 uint32_t queue_pair);
  void note_broken(const verbs::Completion& completion, uint32_t queue_pair);
  void send_grants();
  void send_grant(const ReceiveMessage& message, uint32_t queue_pair);
  void send_credits();
  void write_control(uint32_t queue_pair, const void* line, uint64_t offset_bytes);

  base::Outcome advance(ReceiveMessage& message);
  base::Outcome finish_arrival(ReceiveMessage& message);
  base::Outcome describe_pages(ReceiveMessage& message);
  base::Outcome move_pages(ReceiveMessage& message);
  base::Outcome flush_pages(ReceiveMessage& message);
  base::Outcome make_ready(ReceiveMessage& message);
  base::Outcome repost(uint32_t queue_pair, std::span<const uint32_t> pages);
  base::Outcome release_pages(ReceiveMessage& message);
  base::Outcome close_message(ReceiveMessage& message);
  base::Outcome check_wait(const ReceiveMessage& message);
  base::Outcome stick(base::Error error);

  Parts parts_;
  Peer peer_;
  std::unique_ptr<PeerWatch> watch_;
  std::optional<protocol::UnpackQueue> queue_;
  protocol::ReceiverCredits credits_;
  std::array<ReceiveMessage, protocol::kMessageRing> ring_;
  std::array<FlushRequest, protocol::kMessageRing> flushes_;
  uint32_t next_ = 0;        // sequence number of the next receive
  uint32_t next_grant_ = 0;  // grants before it are sent or not needed
  uint32_t consumed_ = 0;    // messages before it are closed
  uint32_t next_flush_ = 0;
  std::array<uint32_t, protocol::kMaxQueuePairs> control_writes_{};  // on each queue pair
  std::array<uint32_t, protocol::kMaxQueuePairs> held_{};  // entries taken and not posted again, on each
  WaitMonitor wait_;
  std::string broken_;  // why nothing more can arrive; what has arrived is still delivered
  base::Outcome sticky_;
  Statistics statistics_;
};

}  // namespace verbena::transport
