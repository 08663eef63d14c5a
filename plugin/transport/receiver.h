// The receiving end of a connection. protocol/receive_core.h decides what is granted, copied and returned.
// connection.h has the parts that both ends share. This class connects them to verbs, to the GPU's bounce
// pool and to the loopback. Only the thread with the progress token (progress_token.h) uses a receiver.
// Unless an error occurs, no function allocates, locks or logs.
#pragma once

#include <array>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "protocol/receive_core.h"
#include "transport/connection.h"
#include "transport/ends.h"
#include "transport/link/loopback.h"
#include "transport/memory/bounce_pool.h"
#include "transport/memory/control_ring.h"
#include "transport/request.h"

namespace verbena::transport {

// All objects that accept creates.
struct ReceiverParts {
  // Before the link, because the pool's receive queues outlive the queue pairs.
  std::shared_ptr<BouncePool> pool;
  // The pool whose base address the unpack handle has; may equal `pool`; null without staging.
  std::shared_ptr<BouncePool> pages;
  Link link;
  // Queues of the pool, by local rail; null for a rail without a queue pair.
  std::vector<BouncePool::Queue*> queues;
  // The reservation of each queue pair. Its `pages` belong to that queue pair alone.
  std::array<BouncePool::Reservation, protocol::kMaxQueuePairs> reservations{};
  std::unique_ptr<ControlRing> control_ring;  // for a device that does not send grants inline
  std::unique_ptr<UnpackMemory> unpack;       // null if no kernel unpacks receives
  std::unique_ptr<LoopbackUser> loopback;     // set if there may be GPU memory
  bool flushes = false;                       // a real NIC: a READ flushes its writes to GPU memory
  bool waits_for_consumed = false;            // the caller will call consume()

  // Call this after the last chunk has arrived. Posts pages again that were not processed or were flushed,
  // and returns all reserved and taken entries to the pool.
  void give_back();
  void give_back_entries();
  // Posts the pages of the reservation to a connected queue pair that has its own receive queue, except the
  // pages in `held`, which the queue pair still holds.
  base::Outcome fill_own_queue(verbs::QueuePair& pair, uint32_t queue_pair, std::vector<uint32_t> held);
};

// ReceivingEnd is the first base class, for the same reason as in Sender.
class Receiver final : public ReceivingEnd,
                       public protocol::ReceiveCore<Receiver, CoreTypes>,
                       public Connection {
 public:
  using Core = protocol::ReceiveCore<Receiver, CoreTypes>;
  using Parts = ReceiverParts;

  // The memory of the sender to which the receiver writes grants and credits, from the sender's connect
  // request.
  struct Peer {
    uint64_t control_address = 0;
    std::array<uint32_t, protocol::kMaxQueuePairs> control_keys{};  // one for each queue pair
  };

  Receiver(Parts parts, const Peer& peer, std::unique_ptr<PeerChannel> channel);
  ~Receiver();

  // Returns no request if no receive can be posted now. `tag` selects the sends that may fill the buffer in
  // connections without staging.
  Posted post(void* data, uint64_t length_bytes, const Registration* memory, ReceiveClass receive_class,
              int32_t tag) override;
  using ReceivingEnd::post;
  // Posts one request for up to protocol::kMaxGroup buffers. Only for connections without unpacking.
  base::Outcome post_group(std::span<const Buffer> buffers, Request** request) override;
  // Writes *done. If the request is done, also writes *bytes, one value for each buffer.
  base::Outcome test(ReceiveMessage& message, bool* done, uint64_t* bytes);
  // Call this when the GPU no longer uses the message. Frees the pages, the slot and the request.
  base::Outcome consume(ReceiveMessage& message);
  // Makes the data that arrived in `data` visible to the GPU. Sets `*request` to null if no flush is
  // necessary: for host memory, or with softverbs, which completes a write only when its bytes are visible.
  base::Outcome flush(const void* data, const Registration* memory, Request** request) override;
  base::Outcome test_flush(FlushRequest& request, bool* done);
  base::Outcome test(Request& request, int* done, int* lengths_bytes) override;
  [[gnu::noinline]] base::Outcome test_group(ReceiveMessage& first, int* done, int* lengths_bytes);
  base::Outcome consume(Request& request) override { return consume(static_cast<ReceiveMessage&>(request)); }
  void release(const Registration*) override {}  // as in Sender
  Statistics close() override;
  observe::Connection* observer() const override { return observed(); }
  using ReceivingEnd::unpacks;

 private:
  friend Core;
  friend protocol::ConnectionCore<Receiver, protocol::ReceiverRecovery>;

  // --- The core's port.
  bool poll_completions();
  void write_control(uint32_t queue_pair, const void* line, uint64_t offset_bytes, bool is_signaled);
  [[gnu::noinline]] void write_from_ring(uint32_t queue_pair, const void* line, uint64_t offset_bytes,
                                         bool is_signaled);
  static const uint32_t* remote_keys(const Registration* memory) { return memory->remote_keys.data(); }
  bool repost(uint32_t queue_pair, std::span<const uint32_t> pages) {
    BouncePool::Queue& queue = queue_of(queue_pair);
    if (!queue.is_shared()) [[unlikely]]
      return repost_own(queue_pair, pages);
    return parts_.pool->repost(queue, pages).is_ok() || fail_repost();
  }
  protocol::PageInfo& page_info(uint32_t page) { return parts_.pool->info(page); }
  uint32_t page_offset(uint32_t page) const { return parts_.pool->offset_of(page); }
  protocol::CopyResult copy_page(uint32_t page, uint8_t* target, const Registration* memory, uint32_t bytes,
                                 uint32_t* outstanding);
  uint32_t find_copy_rail() const;
  bool has_room_to_flush(uint32_t rail) const { return parts_.loopback->has_room(rail); }
  void flush_page(uint32_t rail, uint32_t page, uint32_t* outstanding);
  void flush_data(uint32_t rail, const void* data, const Registration* memory, uint32_t* outstanding);
  void stop_pair(uint32_t queue_pair);
  bool is_drained(uint32_t queue_pair);
  bool connect_pair(uint32_t queue_pair, const protocol::RecoveryRecord& peer);
  void reap_pages() { parts_.pool->reap(); }
  void note_broken(uint32_t queue_pair) { broken_ = failed_.cause(queue_pair); }
  void note_broken_by_peer() { broken_ = failed_.describe() + "; and the peer's process has exited"; }
  void note_post(uint32_t sequence, uint64_t bytes, uint32_t queue_pair) {
    observed_->note_post(sequence, bytes, link_.pair(queue_pair).number());
  }
  void note_grant(uint32_t sequence) { observed_->note_grant(sequence); }
  void note_consumed(uint32_t sequence) { observed_->note_consumed(sequence); }
  void note_flush(uint32_t number) { observed_->note_flush(number); }
  void note_flush_done(uint32_t number) { observed_->note_flush_done(number); }
  void warn_of_stall();

  // --- For Connection.
  int64_t progress_idle() override { return serve(); }
  void fail_pair(uint32_t queue_pair, bool is_final, uint32_t sequence) override {
    fail_queue_pair(queue_pair, is_final, sequence);
  }
  uint32_t oldest_message() const override { return consumed(); }
  std::string explain(protocol::Failure fault, uint32_t number) const override;
  StateDump describe() override;
  StateDump dump_from_outside() const override;

  BouncePool::Queue& queue_of(uint32_t queue_pair) { return *parts_.queues[link_.rail_of(queue_pair)]; }
  [[gnu::noinline]] bool repost_own(uint32_t queue_pair, std::span<const uint32_t> pages);
  [[gnu::cold, gnu::noinline]] void take_back(const verbs::Completion& completion, uint32_t rail);
  [[gnu::noinline]] bool poll_loopback();
  [[gnu::cold, gnu::noinline]] bool fail_repost();
  std::string describe_state(const Core& core, bool is_seen_from_outside) const;
  std::string describe_queue_pair(uint32_t queue_pair);

  Parts parts_;  // all but the link, which Connection owns
  Peer peer_;
  std::array<int64_t, protocol::kMaxQueuePairs> stopped_at_ns_{};
  // The state of a queue pair that has its own receive queue.
  struct OwnQueue {
    bool is_stopped = false;
    uint32_t idle_entries = 0;  // returned unused by the device, or returned after the queue pair stopped
  };
  std::array<OwnQueue, protocol::kMaxQueuePairs> own_queues_{};
  std::string broken_;  // why this end receives nothing more
};

}  // namespace verbena::transport
