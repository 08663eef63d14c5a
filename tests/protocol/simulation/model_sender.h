// The sending end, made of the protocol's parts as plugin/transport/sender.cc is, over the simulated network.
#pragma once

#include <array>
#include <memory>
#include <string>

#include "protocol/chunking.h"
#include "protocol/credits.h"
#include "protocol/rail_share.h"
#include "protocol/recovery.h"
#include "protocol/replay.h"
#include "protocol/simulation/control_channel.h"
#include "protocol/simulation/network.h"

namespace verbena::protocol::simulation {

class ModelSender {
 public:
  ModelSender(const Shape& shape, Network& network, ControlChannel& from_peer, ControlChannel& to_peer);

  // False: the ring is full.
  bool post(const uint8_t* data, uint32_t length_bytes, bool may_stage);
  // What NCCL's test does: `progress`, unless it is done already.
  bool test(uint32_t sequence);
  void progress();
  // What the service does while no request is open.
  void attend();
  void wake() { attend_at_ns_ = network_.now_ns(); }
  void leave();

  bool is_open() const { return open_ != 0; }
  uint32_t next() const { return next_; }
  // Why the connection failed, as the application is told; empty while it has not.
  const std::string& error() const { return error_; }
  // What must never happen.
  const std::string& violation() const { return violation_; }
  uint64_t staged_messages() const { return staged_; }
  uint64_t direct_messages() const { return direct_; }
  uint64_t replays() const { return replays_; }
  uint64_t revivals() const { return revivals_; }
  const SenderRecovery& recovery() const { return recovery_; }
  bool has_replays() const { return replay_ != nullptr && !replay_->is_empty(); }
  uint32_t lane(uint32_t queue_pair) const { return lanes_[queue_pair]; }
  uint32_t count_taken(uint32_t queue_pair) const {
    return credits_.window(queue_pair) - credits_.available(queue_pair) + credits_.returned(queue_pair);
  }
  uint64_t outstanding_bytes(uint32_t queue_pair) const {
    return share_.rate(queue_pair).outstanding_bytes();
  }

  // The next of these fails.
  bool fails_offer = false, fails_connect = false;

 private:
  enum class Path : uint8_t { kUndecided, kStaged, kDirect };
  struct Message {
    bool in_use = false, is_posted = false, may_stage = false, is_whole = false;
    Path path = Path::kUndecided;
    uint8_t whole_on = 0;
    const uint8_t* data = nullptr;
    uint32_t length_bytes = 0, sequence = 0;
    std::array<uint32_t, kMaxQueuePairs> outstanding{};
    Cut cut;
    Grant grant;

    bool takes_pages() const { return path == Path::kStaged && length_bytes != 0; }
    bool is_complete() const { return is_posted && outstanding == std::array<uint32_t, kMaxQueuePairs>{}; }
  };
  struct Host;
  friend struct Host;

  void absorb_completions();
  void note_failure(const Sent& sent, uint32_t queue_pair);
  void absorb_credits();
  void absorb_note(const CreditNote& note);
  void post_waiting();
  void post_chunks(Message& message);
  bool decide_path(Message& message);
  bool cut(Message& message);
  bool is_for_home(const Message& message, uint64_t chunks) const;
  Shares find_room(const Message& message, uint32_t unit_bytes) const;
  bool may_lack_credits(const Message& message) const;
  bool is_too_far_ahead(const Message& message) const {
    return count_between(consumed_, message.sequence) >= static_cast<int32_t>(kMessageRing);
  }
  bool read_grant(uint32_t sequence, Grant& grant) const;
  bool read_note(CreditNote& note);
  void post_chunk(Message& message, uint32_t queue_pair, const Chunk& chunk, bool is_replay);
  bool has_replays(const Message& message) const {
    return replay_ != nullptr && replay_->pending(message.sequence % kMessageRing) != 0;
  }

  void recover();
  void absorb_records(Host& host);
  void give_up(uint32_t queue_pair);
  void update_rails();
  bool replay(uint32_t queue_pair, const ArrivedRecord& arrived);
  bool replay_message(Message& message, uint32_t ahead, uint32_t queue_pair, const ArrivedRecord& arrived);
  void post_replays();
  void post_replays_of(Message& message);
  void check_wait();

  uint32_t find_queue_pair(uint32_t lane) const;
  uint32_t staged_limit(uint32_t queue_pair) const {
    const uint32_t window = credits_.window(queue_pair);
    return std::min((window + 1) / 2, window - std::min(window, kept_entries_));
  }
  uint32_t count_free(uint32_t queue_pair) const {
    return lanes_[queue_pair] == kNoLane ? 0 : credits_.available(queue_pair);
  }
  uint32_t count_free(const Message& message, uint32_t queue_pair) const {
    const uint32_t kept = message.takes_pages() ? kept_entries_ : 0, free = count_free(queue_pair);
    return free <= kept ? 0 : free - kept;
  }
  void fail(const std::string& error) {
    if (error_.empty()) error_ = error;
  }

  const Shape& shape_;
  Network& network_;
  ControlChannel& from_peer_;
  ControlChannel& to_peer_;
  SenderCredits credits_;
  std::array<Message, kMessageRing> ring_;
  std::array<uint32_t, kMaxQueuePairs> lanes_{};
  RailShare share_;
  uint32_t next_, posting_, consumed_, next_note_;
  uint32_t first_home_, home_;
  uint32_t few_credits_ = 0;
  uint32_t kept_entries_;
  uint64_t max_staged_bytes_ = 0;
  uint32_t open_ = 0;
  SenderRecovery recovery_;
  std::unique_ptr<Replay> replay_;
  std::array<RecoveryRecord, kMaxQueuePairs> answers_;
  uint32_t idle_tests_ = 0;
  int64_t waits_since_ns_ = 0, attend_at_ns_ = kNever, closed_since_ns_ = 0;
  uint64_t staged_ = 0, direct_ = 0, replays_ = 0, revivals_ = 0;
  std::string error_, violation_;
};

}  // namespace verbena::protocol::simulation
