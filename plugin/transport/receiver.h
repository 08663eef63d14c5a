// The receiving end of a connection: protocol/receive_core.h decides what is granted, placed and given back,
// connection.h has what both ends have, and this joins them to verbs, the GPU's bounce pool and the loopback.
// One thread at a time (progress_token.h); nothing here allocates, locks or logs unless it fails.
#pragma once

#include <array>
#include <memory>
#include <optional>
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

// Everything that accept set up.
struct ReceiverParts {
  std::shared_ptr<BouncePool> pool;   // before the link: its receive queues outlive the queue pairs
  std::shared_ptr<BouncePool> pages;  // whose base the unpack handle names; the same, or nothing is staged
  Link link;
  std::vector<BouncePool::Queue*> queues;  // of the pool, one a local rail; null: no queue pair is on it
  // To each queue pair; `pages` are its alone.
  std::array<BouncePool::Reservation, protocol::kMaxQueuePairs> reservations{};
  std::unique_ptr<ControlRing> control_ring;  // of a device that does not send grants inline
  std::unique_ptr<UnpackMemory> unpack;       // null: no kernel unpacks here
  std::unique_ptr<LoopbackUser> loopback;     // where there may be memory of GPUs
  bool flushes = false;             // a real NIC: what it writes to memory of a GPU is pushed by a READ
  bool waits_for_consumed = false;  // the caller will call consume()

  // No chunk lands any more; pages that landed and were not looked at, or were flushed, are posted again;
  // everything reserved and taken goes back to the pool.
  void give_back();
  void give_back_entries();
  // Fills the receive queue of a queue pair that has one of its own and is connected, but for what it has in
  // `held` already.
  base::Outcome fill_own_queue(verbs::QueuePair& pair, uint32_t queue_pair, std::vector<uint32_t> held);
};

// ReceivingEnd is the first base, as Sender's is.
class Receiver final : public ReceivingEnd,
                       public protocol::ReceiveCore<Receiver, CoreTypes>,
                       public Connection {
 public:
  using Core = protocol::ReceiveCore<Receiver, CoreTypes>;
  using Parts = ReceiverParts;

  // Where the receiver writes its grants and credits, from the sender's Hello.
  struct Peer {
    uint64_t control_address = 0;
    std::array<uint32_t, protocol::kMaxQueuePairs> control_keys{};  // one a queue pair
  };

  Receiver(Parts parts, const Peer& peer, std::unique_ptr<PeerChannel> channel);
  ~Receiver();

  // Null in `*request` if there is no room now. `tag`: of the sends that may fill it, where nothing is
  // staged.
  base::Outcome post(void* data, uint64_t length_bytes, const Registration* memory,
                     ReceiveClass receive_class, Request** request, int32_t tag = 0) override;
  // One request for up to protocol::kMaxGroup buffers. Only where nothing unpacks.
  base::Outcome post_group(std::span<const Buffer> buffers, Request** request) override;
  // Writes *done, and *bytes if it is done: one for each buffer.
  base::Outcome test(ReceiveMessage& message, bool* done, uint64_t* bytes);
  // The GPU is done with the message: pages, slot and request are free again.
  base::Outcome consume(ReceiveMessage& message);
  // Makes what arrived in `data` visible to the GPU. Null in `*request`: nothing to wait for, as it is host
  // memory, or as softverbs says "done" when the bytes are there.
  base::Outcome flush(const void* data, const Registration* memory, Request** request) override;
  base::Outcome test_flush(FlushRequest& request, bool* done);
  base::Outcome test(Request& request, bool* done, int* lengths_bytes) override;
  base::Outcome consume(Request& request) override { return consume(static_cast<ReceiveMessage&>(request)); }
  void release(const Registration*) override {}  // as Sender's
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
  void note_broken_by_peer() { broken_ = failed_.describe() + "; and the peer is gone"; }
  void note_post(uint32_t sequence, uint64_t bytes, uint32_t queue_pair) {
    observed_->note_post(sequence, bytes, link_.pair(queue_pair).number());
  }
  void note_grant(uint32_t sequence) { observed_->note_grant(sequence); }
  void note_consumed(uint32_t sequence) { observed_->note_consumed(sequence); }
  void note_flush(uint32_t number) { observed_->note_flush(number); }
  void note_flush_done(uint32_t number) { observed_->note_flush_done(number); }
  void warn_of_stall();

  // --- Connection's.
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

  Parts parts_;  // but the link, which is the connection's until the end
  Peer peer_;
  std::array<int64_t, protocol::kMaxQueuePairs> stopped_at_ns_{};
  // Of a queue pair with a receive queue of its own.
  struct OwnQueue {
    bool is_stopped = false;
    uint32_t idle_entries = 0;  // came back from the device unused, or were given back to a stopped one
  };
  std::array<OwnQueue, protocol::kMaxQueuePairs> own_queues_{};
  std::string broken_;  // why nothing more can arrive
};

}  // namespace verbena::transport
