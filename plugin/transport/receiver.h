// The receiving end of a connection. Chunks are matched to messages by number, so they may come on any rail,
// in any order, and before their receive is posted. A message is complete when all its chunks are there:
//   direct: the bytes are in their place already; a slot that a kernel will look at stays empty (cnt 0);
//   staged: with a slot, its pages are described there and the GPU places them; without one (nobody unpacks),
//   the plugin
//           copies them itself, by CPU or by loopback.
// One thread at a time (attendance.h); nothing here allocates, locks or logs unless it fails. What becomes of
// a queue pair that fails: receiver_recovery.cc.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "observe/connection.h"
#include "protocol/arrivals.h"
#include "protocol/credits.h"
#include "protocol/recovery.h"
#include "protocol/unpack_queue.h"
#include "transport/bounce_pool.h"
#include "transport/endpoint.h"
#include "transport/failed_rails.h"
#include "transport/link.h"
#include "transport/loopback.h"
#include "transport/peer_channel.h"
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
  // What it waits for, as far as this end knows.
  enum class Wait : uint8_t { kGrant, kArrival, kCopy, kPush, kTest, kConsumption };
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
  uint32_t number = 0;
  uint32_t outstanding = 0;
};

class Receiver final : public Endpoint {
 public:
  // Where the receiver writes its grants and credits, from the sender's Hello.
  struct Peer {
    uint64_t control_address = 0;
    std::array<uint32_t, protocol::kMaxQueuePairs> control_keys{};  // one a queue pair
  };
  static constexpr uint32_t kControlDepth = 16;  // grants and credit lines in flight on one queue pair

  // Everything that accept set up.
  struct Parts {
    std::shared_ptr<BouncePool> pool;   // before the link: its receive queues outlive the queue pairs
    std::shared_ptr<BouncePool> pages;  // whose base the unpack handle names; the same, or nothing is staged
    Link link;
    std::vector<BouncePool::Rail*> rails;  // of the pool, one a local rail
    struct Promise {
      BouncePool::Rail* rail = nullptr;
      uint32_t entries = 0;
    };
    std::array<Promise, protocol::kMaxQueuePairs> promises{};  // for each queue pair
    std::unique_ptr<UnpackMemory> unpack;                      // null: no kernel unpacks here
    std::optional<Loopback> loopback;                          // where GPU memory is involved
    bool flushes = false;             // a real NIC behind GPU memory: writes are pushed by a READ
    bool waits_for_consumed = false;  // the caller will call consume()

    // No chunk lands any more; pages that landed and were not looked at, or were flushed, are posted again;
    // everything promised and taken goes back to the pool.
    void give_back();
    void give_back_entries();
  };

  Receiver(Parts parts, const Peer& peer, std::unique_ptr<PeerChannel> channel);
  ~Receiver();
  // Once, before the first post: from here on the service thread may attend to it.
  base::Outcome open();

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
  // Of a connection that the service thread has no work with; in doubt close() first.
  const Statistics& statistics() const { return statistics_; }
  // Null: it is not observed.
  observe::Connection* observed() const { return observed_.get(); }
  // The last call before destruction: no other thread is at work on it any more.
  void close();

 private:
  // Entries that are free but not posted yet: posting costs the provider's lock and a doorbell. At most an
  // eighth of the window; see ReceiverCredits::is_update_due.
  struct Spare {
    static constexpr uint32_t kMax = 8;
    std::array<uint32_t, kMax> pages{};
    uint32_t count = 0, limit = 1;
  };

  struct RecoveryHost;
  friend struct RecoveryHost;

  int64_t attend() override;
  base::Outcome recover();
  // What may have to end in an error is looked at in every test: where others have the cores, many take long.
  bool is_pressing() const {
    return channel_->is_closed() ||
           (!recovery_.are_all_live() && recovery_.find_waiting_since() != protocol::kNever);
  }
  bool is_anything_wrong() const { return is_wanted() || !recovery_.are_all_live() || is_recovering_; }
  void hurry_entries();
  base::Outcome absorb_records(RecoveryHost& host, int64_t now_ns);
  base::Outcome check_rails(const ReceiveMessage& message);
  void give_up(uint32_t queue_pair, const std::string& cause);
  void count_failed(uint32_t queue_pair);
  base::Outcome begin_receive();
  [[gnu::cold]] base::Outcome begin_observed(const ReceiveMessage& message);
  base::Outcome report(ReceiveMessage& message);
  [[gnu::cold]] base::Outcome report_observed(ReceiveMessage& message);
  [[gnu::cold]] void send_grants_observed();
  template <typename Note>
  void send_grants_noting(Note&& note);
  [[gnu::cold]] void observe_chunk(const verbs::Completion& completion, uint32_t queue_pair);
  void update_rails();
  void describe_arrived(protocol::ArrivedRecord& record) const;
  void take_back(const verbs::Completion& completion, uint32_t rail);
  // One request less.
  void finish_request() {
    if (--open_ == 0) hand_over();
  }
  void hand_over();
  base::Outcome refuse();

  [[gnu::noinline]] base::Outcome progress();  // gcc would split it, and each test would call twice
  base::Outcome absorb_completions();
  base::Outcome poll_loopback();
  void absorb_chunk(const verbs::Completion& completion, uint32_t queue_pair);
  bool place_whole(const verbs::Completion& completion);
  void refuse_chunk(const verbs::Completion& completion, uint32_t queue_pair, bool is_within_window);
  bool place_chunk(const verbs::Completion& completion, uint32_t queue_pair);
  void hold_page(ReceiveMessage& message, const verbs::Completion& completion, uint16_t chunk,
                 uint32_t queue_pair);
  void note_failure(const verbs::Completion& completion, uint32_t queue_pair);
  void note_broken(const std::string& cause);
  // Whether grants and credits may leave: never over a queue pair that is on trial, as what it carries may
  // arrive after what is written later.
  void note_writable() { may_write_control_ = broken_.empty() && recovery_.is_any_live(); }
  void send_grants();
  void send_grant(const ReceiveMessage& message);
  void send_credits();
  void write_control(uint32_t queue_pair, const void* line, uint64_t offset_bytes);

  static bool is_here(const ReceiveMessage& message) {
    return message.phase == ReceiveMessage::Phase::kArriving && message.arrivals.is_complete();
  }
  base::Outcome advance(ReceiveMessage& message);
  base::Outcome finish_arrival(ReceiveMessage& message);
  base::Outcome describe_pages(ReceiveMessage& message);
  base::Outcome move_pages(ReceiveMessage& message);
  base::Outcome flush_pages(ReceiveMessage& message);
  base::Outcome make_ready(ReceiveMessage& message);
  base::Outcome hand_over(ReceiveMessage& message);
  base::Outcome give_back(uint32_t queue_pair, uint32_t page) {
    Spare& spare = spares_[queue_pair];
    spare.pages[spare.count++] = page;
    return spare.count < spare.limit ? base::Outcome() : repost_spare(queue_pair);
  }
  base::Outcome repost(uint32_t queue_pair, std::span<const uint32_t> pages);
  base::Outcome repost_spare(uint32_t queue_pair);
  base::Outcome release_pages(ReceiveMessage& message);
  base::Outcome close_message(ReceiveMessage& message);
  base::Outcome check_wait(const ReceiveMessage& message);
  base::Outcome check_requests();
  base::Outcome fail_device(const char* what, uint32_t number);
  void warn_of_stall();
  static ReceiveMessage::Wait find_wait(const ReceiveMessage& message, uint32_t next_grant);

  struct Numbers;  // what can be told of this end without its turn
  Telling describe() override;
  Telling tell_from_outside() const override;
  std::string describe_briefly() const override;
  std::string describe_queue_pair(uint32_t queue_pair);
  std::string describe_numbers(const Numbers& numbers, bool is_seen_from_outside) const;
  // `take(from, to)` for each, until one says false.
  template <typename Take>
  bool take_numbers(Numbers& numbers, Take&& take) const;
  void read_numbers(Numbers& numbers) const;

  base::Outcome fail_broken(const ReceiveMessage& message);
  base::Outcome stick(base::Error error);

  Parts parts_;
  Peer peer_;
  std::unique_ptr<PeerChannel> channel_;
  const bool is_direct_only_;       // nothing is staged but messages of no bytes
  const uint32_t first_home_;       // the queue pair of grants while all live
  uint32_t home_;                   // now
  uint32_t credit_pair_ = 0;        // of credit lines
  bool must_send_credits_ = false;  // what was told may be lost
  std::optional<protocol::UnpackQueue> queue_;
  protocol::ReceiverCredits credits_;
  std::array<ReceiveMessage, protocol::kMessageRing> ring_;
  std::array<FlushRequest, protocol::kMessageRing> flushes_;
  uint32_t next_ = 0;              // sequence number of the next receive
  uint32_t next_grant_ = 0;        // grants before it are sent or not needed
  uint32_t consumed_ = 0;          // messages before it are closed
  uint32_t recovering_until_ = 0;  // messages before it may have been under way when something failed
  bool is_recovering_ = false;     // some of them are not consumed yet
  bool may_write_control_ = true;
  uint32_t next_flush_ = 0;
  std::array<uint32_t, protocol::kMaxQueuePairs> control_writes_{};  // on each queue pair
  std::array<uint32_t, protocol::kMaxQueuePairs> held_{};  // entries taken and not posted again, on each
  std::array<Spare, protocol::kMaxQueuePairs> spares_;
  WaitMonitor wait_;
  WaitStamps wait_stamps_, flush_stamps_;
  uint32_t open_ = 0;  // requests
  protocol::ReceiverRecovery recovery_;
  std::array<int64_t, protocol::kMaxQueuePairs> stopped_at_ns_{};
  FailedRails failed_;
  std::shared_ptr<observe::Connection> observed_;  // null: nobody wants to know
  std::string broken_;  // why nothing more can arrive; what has arrived is still delivered
  base::Outcome sticky_;
  Statistics statistics_;
  const int64_t opened_at_ns_ = base::monotonic_ns();
};

}  // namespace verbena::transport
