// The sending end of a connection. A message is cut into chunks that may take any rail:
//   staged: at once, into whatever page the receiver's shared receive queue offers, as far as credits reach;
//   direct: once the receiver has granted an address, by RDMA write to that place.
// protocol::RailShare says which queue pair carries how much; with one queue pair nobody asks.
// Messages leave in the order of posting. One thread at a time (attendance.h); nothing here allocates, locks
// or logs unless it fails. What becomes of a queue pair that fails: sender_recovery.cc.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <memory>
#include <string>

#include "base/status.h"
#include "observe/connection.h"
#include "protocol/chunking.h"
#include "protocol/credits.h"
#include "protocol/handshake.h"
#include "protocol/rail_share.h"
#include "protocol/recovery.h"
#include "protocol/replay.h"
#include "protocol/sequence.h"
#include "transport/control_block.h"
#include "transport/endpoint.h"
#include "transport/failed_rails.h"
#include "transport/link.h"
#include "transport/peer_channel.h"
#include "transport/registration.h"
#include "transport/request.h"
#include "transport/statistics.h"
#include "transport/wait_monitor.h"

namespace verbena::transport {

// Of a send's completion: whose it is, and how many bytes it stands for.
inline uint64_t make_send_cookie(uint32_t sequence, uint32_t bytes) {
  return uint64_t{bytes} << 32 | sequence;
}
inline uint32_t cookie_bytes(uint64_t cookie) {
  return static_cast<uint32_t>(cookie >> 32);
}

struct SendMessage : Request {
  enum class Path : uint8_t { kUndecided, kStaged, kDirect };
  bool in_use = false;
  bool may_stage = false;
  Path path = Path::kUndecided;
  const uint8_t* data = nullptr;
  const Registration* memory = nullptr;
  uint64_t length_bytes = 0;
  uint32_t sequence = 0;
  bool is_posted = false;  // all of it
  // One chunk, on whole_on; otherwise `cut` says what is where.
  bool is_whole = false;
  uint8_t whole_on = 0;
  // Signaled work requests without a completion yet, on each queue pair (at most Sender::kSendDepth).
  std::array<uint8_t, protocol::kMaxQueuePairs> outstanding{};
  protocol::Cut cut;
  protocol::Grant grant;

  bool takes_pages() const { return path == Path::kStaged && length_bytes != 0; }
  // What it waits for, as far as this end knows.
  enum class Wait : uint8_t { kTest, kCompletions, kReplay, kTurn, kConsumption, kGrant, kRoom };

  bool is_complete() const { return is_posted && std::bit_cast<uint64_t>(outstanding) == 0; }
};

class Sender final : public Endpoint {
 public:
  // Work requests of one queue pair: 8 messages that NCCL keeps open, of 8 pages or stripes each. A staged
  // run signals each 16th at the latest. One less than a power of two, as some devices' completion queues
  // have one entry more than they are asked for.
  static constexpr uint32_t kSendDepth = 63;

  // Null: it is not observed.
  observe::Connection* observed() const { return observed_.get(); }

  // What the receiver said in its Welcome, and our own smallest stripe.
  struct Peer {
    std::array<uint8_t, protocol::kMaxQueuePairs> rail_of{};  // the receiver's rail of each queue pair
    uint32_t page_bytes = 0;
    std::array<uint32_t, protocol::kMaxQueuePairs> window{};
    uint64_t staging_threshold_bytes = 0;
    uint64_t min_stripe_bytes = 65536;
    bool staging = false;
    protocol::RailShare::Speeds speed_mbps{};  // what each queue pair may count on; 0: unknown
    uint32_t home = 0;                         // the queue pair of short messages
  };

  Sender(Link link, ControlMemory control, const Peer& peer, std::unique_ptr<PeerChannel> channel);
  ~Sender();
  // Once, before the first post: from here on the service thread may attend to it.
  base::Outcome open();

  // Null in `*request` if the ring is full. `may_stage`: the caller believes that the receiving kernel
  // unpacks.
  base::Outcome post(const void* data, uint64_t length_bytes, const Registration* memory, bool may_stage,
                     Request** request);
  // Writes *done; a request that is done is free again. Requests may be tested in any order.
  base::Outcome test(SendMessage& message, bool* done);

  bool stages() const { return peer_.staging; }
  // As the receiver's.
  const Statistics& statistics() const { return statistics_; }
  void close();

 private:
  static constexpr uint32_t kFewSlots = kSendDepth / 2;
  static constexpr uint64_t kTrialCookie = uint64_t{1} << 63;  // of what tries a new queue pair

  struct RecoveryHost;
  friend struct RecoveryHost;

  base::Outcome progress();
  base::Outcome absorb_completions();
  base::Outcome absorb_credits();
  base::Outcome absorb_note(const protocol::CreditNote& note) {
    const uint32_t q = note.queue_pair();
    if (q >= link_.queue_pairs() || !credits_.absorb(q, note.expand_returned(credits_.returned(q))))
      return fail_note(note);
    consumed_ = protocol::take_newer(consumed_, note.consumed);
    return protocol::is_before(next_, consumed_) ? fail_consumed() : base::Outcome();
  }
  base::Outcome fail_note(const protocol::CreditNote& note);
  // The receiver grants at most a ring beyond what it has consumed, and consumes what was sent.
  bool is_ungrantable(uint32_t sequence) const {
    return !protocol::is_before(sequence, next_ + protocol::kMessageRing);
  }
  base::Outcome fail_stamp();
  base::Outcome fail_consumed();
  base::Outcome post_waiting();
  base::Outcome post_chunks(SendMessage& message);
  bool decide_path(SendMessage& message);
  base::Outcome fail_grant(const SendMessage& message);
  base::Outcome take_note(const SendMessage& message);
  bool cut(SendMessage& message);
  bool is_for_home(const SendMessage& message, uint64_t chunks);
  protocol::Shares find_room(const SendMessage& message, uint32_t unit_bytes);
  base::Outcome post_whole(SendMessage& message);
  base::Outcome post_staged(SendMessage& message);
  base::Outcome post_staged_run(SendMessage& message, uint32_t queue_pair, uint32_t count);
  base::Outcome post_direct(SendMessage& message);
  base::Outcome post_stripe(SendMessage& message, uint32_t queue_pair);
  verbs::WorkRequest make_request(const SendMessage& message, uint32_t queue_pair,
                                  const protocol::Chunk& chunk) const;
  base::Outcome fail_post(uint32_t queue_pair);
  // What may have to end in an error is looked at in every test: where others have the cores, many take long.
  bool is_pressing() const {
    return channel_->is_closed() ||
           (!recovery_.are_all_live() && recovery_.find_waiting_since() != protocol::kNever);
  }
  bool is_anything_wrong() const { return is_wanted() || !recovery_.are_all_live() || has_any_replays(); }
  bool has_replays(const SendMessage& message) const {
    return replay_ != nullptr && replay_->pending(message.sequence % protocol::kMessageRing) != 0;
  }
  bool has_any_replays() const { return is_watched_ && replay_ != nullptr && !replay_->is_empty(); }
  base::Outcome post_chunk(SendMessage& message, uint32_t queue_pair, const protocol::Chunk& chunk);
  base::Outcome post_again(SendMessage& message, uint32_t queue_pair, const protocol::Chunk& chunk);
  base::Outcome post_one(SendMessage& message, uint32_t queue_pair, const verbs::WorkRequest& request);
  [[gnu::cold]] void observe_chunk(const SendMessage& message, uint32_t queue_pair, uint32_t bytes);
  void note_posted(SendMessage& message, uint32_t queue_pair, uint32_t bytes);
  void finish_request(SendMessage& message);
  void hand_over();
  base::Outcome refuse();

  int64_t attend() override;
  void note_failure(const verbs::Completion& completion, uint32_t queue_pair);
  void give_up(uint32_t queue_pair, const std::string& cause);
  void count_failed(uint32_t queue_pair);
  base::Outcome recover();
  base::Outcome absorb_records(RecoveryHost& host, int64_t now_ns);
  base::Outcome check_rails();
  bool replay(uint32_t queue_pair, const protocol::ArrivedRecord& arrived);
  bool replay_message(SendMessage& message, uint32_t ahead, uint32_t queue_pair,
                      const protocol::ArrivedRecord& arrived);
  base::Outcome post_replays();
  base::Outcome post_replays_of(SendMessage& message);
  void update_rails();
  // Whether completions and credits are worth a look before a message is posted: they may be what it lacks.
  // The choice of a rail needs to know what has completed.
  bool may_lack_slots(uint64_t length_bytes) {
    return link_.pair(peer_.home).free_slots() < kFewSlots ||
           (has_choice_ && (share_.is_measuring() || !share_.is_for_home(length_bytes)));
  }
  bool may_lack_credits(const SendMessage& message) {
    return credits_.available(peer_.home) < few_credits_ || is_too_far_ahead(message) ||
           message.path != SendMessage::Path::kUndecided ||  // it did not leave whole
           (has_choice_ && !share_.is_for_home(message.length_bytes));
  }
  // The receiver keeps kMessageRing messages apart by their number: none may be further ahead.
  bool is_too_far_ahead(const SendMessage& message) const {
    return protocol::count_between(consumed_, message.sequence) >=
           static_cast<int32_t>(protocol::kMessageRing);
  }
  // A message keeps its place in the ring until it is known to be consumed: should the peer's device have
  // lost it, its place says who carried it.
  bool is_ring_full() const {
    return protocol::count_between(consumed_, next_) >= static_cast<int32_t>(protocol::kMessageRing);
  }
  base::Outcome wait_for_ring();
  base::Outcome begin(uint64_t length_bytes, bool others_wait);
  [[gnu::cold]] base::Outcome begin_watched(const SendMessage& message, bool others_wait);
  [[gnu::cold]] void observe_done(const SendMessage& message);
  // Chunks that a queue pair can take now.
  uint32_t count_free(uint32_t queue_pair) {
    return std::min(credits_.available(queue_pair), link_.pair(queue_pair).free_slots());
  }
  // Of this message. Pages stay taken until their message is consumed, which may be after an older one of
  // which something has been lost on another rail: for that one entry is kept (see post_replays_of).
  uint32_t count_free(const SendMessage& message, uint32_t queue_pair) {
    const uint32_t kept = message.takes_pages() ? kept_entries_ : 0,
                   available = credits_.available(queue_pair);
    return available <= kept ? 0 : std::min(available - kept, link_.pair(queue_pair).free_slots());
  }
  // A message may take so many of a queue pair's entries: see ReceiverCredits::is_update_due.
  uint32_t staged_limit(uint32_t queue_pair) const {
    const uint32_t window = credits_.window(queue_pair);
    return std::min((window + 1) / 2, window - std::min(window, kept_entries_));
  }
  base::Outcome check_wait();
  base::Outcome check_completions();
  void warn_of_stall();
  static SendMessage::Wait find_wait(const SendMessage& message, uint32_t posting, uint32_t consumed);
  base::Outcome fail(uint32_t sequence, const std::string& cause);
  base::Outcome stick(base::Error error);

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

  ControlMemory control_;  // before the link: the peer writes there until the queue pairs are gone
  Link link_;
  Peer peer_;
  std::unique_ptr<PeerChannel> channel_;
  protocol::SenderCredits credits_;
  std::array<SendMessage, protocol::kMessageRing> ring_;
  uint32_t next_ = 0;              // sequence number of the next message
  uint32_t posting_ = 0;           // messages before it are posted whole
  uint32_t consumed_ = 0;          // as the receiver told
  uint32_t next_note_ = 0;         // credits on grants before it are counted
  uint32_t few_credits_ = 0;       // of the home
  uint64_t max_staged_bytes_ = 0;  // 0: nothing is staged but messages of no bytes
  const bool has_choice_;          // more than one queue pair
  const uint32_t kept_entries_;    // of each queue pair, for what has to be sent again
  protocol::RailShare share_;
  int64_t now_ns_ = 0;  // in this call, if anybody had to look
  uint32_t open_ = 0;   // requests
  WaitMonitor wait_;
  WaitStamps wait_stamps_;
  protocol::SenderRecovery recovery_;
  std::unique_ptr<protocol::Replay> replay_;  // made at the first failure
  FailedRails failed_;
  uint32_t first_home_ = 0;                        // while all queue pairs live
  std::shared_ptr<observe::Connection> observed_;  // null: nobody wants to know
  bool is_watched_ = false;  // something is to be done for each post: replay_ or observed_
  std::array<protocol::RecoveryRecord, protocol::kMaxQueuePairs> answers_;
  base::Outcome sticky_;
  Statistics statistics_;
  const int64_t opened_at_ns_ = base::monotonic_ns();
};

}  // namespace verbena::transport
