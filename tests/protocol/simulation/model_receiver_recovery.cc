// As plugin/transport/receiver_recovery.cc.
#include <utility>

#include "protocol/sequence.h"
#include "protocol/simulation/model_receiver.h"

namespace verbena::protocol::simulation {

struct ModelReceiver::Host {
  ModelReceiver& receiver;

  void stop(uint32_t q) { receiver.network_.fail_receiver(receiver.lanes_[q]); }
  void send(const RecoveryRecord& record) { receiver.to_peer_.send(record); }
  // Asked before the look: whatever came until then is found by it.
  bool is_drained(uint32_t q) {
    if (!receiver.network_.lane(receiver.lanes_[q]).is_drained()) return false;
    receiver.network_.interleave();
    receiver.absorb_completions();
    return true;
  }
  void send_arrived(const RecoveryRecord& record) {
    ArrivedRecord arrived;
    receiver.describe_arrived(arrived);
    receiver.to_peer_.send(record, &arrived);
    receiver.lanes_[record.queue_pair] = kNoLane;
    receiver.control_writes_[record.queue_pair] = {};
  }
  void regrant() {
    receiver.update_rails();
    receiver.next_grant_ = receiver.consumed_;
    receiver.recovering_until_ = receiver.consumed_ + kMessageRing;
    receiver.send_grants();
    receiver.send_credits();
  }
  bool answer(uint32_t q, const RecoveryRecord& offer, RecoveryRecord& record) {
    Network& network = receiver.network_;
    if (std::exchange(receiver.refuses, false) || !network.is_up(q % receiver.shape_.rails)) return false;
    receiver.lanes_[q] = offer.pair.number;
    network.lane(offer.pair.number).receiver.is_ready = true;
    record.pair.number = offer.pair.number;
    record.returned = receiver.credits_.returned(q);
    record.held = receiver.held_[q];
    return true;
  }
  void revive(uint32_t) { regrant(); }
};

void ModelReceiver::update_rails() {
  // Neither moves while its queue pair lives: what is under way there must not land on what is newer.
  if (!recovery_.is_live(home_)) home_ = recovery_.find_live(first_home_);
  if (!recovery_.is_live(credit_pair_)) credit_pair_ = recovery_.find_live(0);
}

void ModelReceiver::give_up(uint32_t queue_pair) {
  const auto phase = recovery_.phase(queue_pair);
  if (phase != QueuePairLives::Phase::kLive && phase != QueuePairLives::Phase::kTrial)
    return;  // flushed work
  Host host{*this};
  recovery_.fail(host, queue_pair, network_.now_ns());
  ++failures_;
  update_rails();
}

void ModelReceiver::describe_arrived(ArrivedRecord& record) const {
  record.consumed = consumed_;
  for (uint32_t ahead = 0; ahead < kMessageRing; ++ahead) {
    const uint32_t sequence = consumed_ + ahead;
    const Message& message = ring_[sequence % kMessageRing];
    const bool has_closed = is_before(sequence, next_) && !message.is_posted;
    if (has_closed || message.arrivals.is_complete()) {
      record.complete |= 1U << ahead;
    } else {
      record.chunks[ahead] = message.arrivals.bitmap();
    }
  }
}

void ModelReceiver::recover() {
  network_.interleave();
  const bool has_news = from_peer_.is_wanted();
  from_peer_.note_attended();
  const bool is_closed = from_peer_.is_closed();
  Host host{*this};
  if (has_news) absorb_records(host);
  recovery_.step(host, network_.now_ns());
  if (is_recovering()) hurry_entries();
  if (is_closed && broken_.empty() && recovery_.find_waiting_since() != kNever)
    broken_ = "failed, and the peer is gone";
}

void ModelReceiver::hurry_entries() {
  for (uint32_t q = 0; q < shape_.queue_pairs; ++q) post_spare(q);
  must_send_credits_ |= credits_.is_anything_untold(consumed_);
}

void ModelReceiver::absorb_records(Host& host) {
  while (const auto message = from_peer_.receive()) {
    if (!is_sane(message->record, shape_.queue_pairs) ||
        !recovery_.absorb(host, message->record, network_.now_ns())) {
      violation_ = "the receiver refuses a recovery record";
      return;
    }
    update_rails();
  }
}

void ModelReceiver::attend() {
  if (!error_.empty() || (!from_peer_.is_wanted() && network_.now_ns() < attend_at_ns_)) return;
  attend_at_ns_ = kNever;
  absorb_completions();
  recover();
  if (recovery_.are_all_live()) return;
  if (recovery_.is_polling()) attend_at_ns_ = network_.now_ns() + kStepNs;
}

// Its process is gone, or it has given up.
void ModelReceiver::leave() {
  for (uint32_t id = 0; id < network_.count_lanes(); ++id) network_.fail_receiver(id);
  to_peer_.close(false);
}

// For a wait that lasts.
void ModelReceiver::check_wait(const Message& message) {
  const int64_t now_ns = network_.now_ns();
  if (++idle_tests_ % kTestsPerCheck != 0) return;
  if (idle_tests_ == kTestsPerCheck) waits_since_ns_ = now_ns;
  bool is_other_up = false;
  for (uint32_t q = 0; q < shape_.queue_pairs; ++q)
    is_other_up |= recovery_.is_live(q) && network_.is_up(q % shape_.rails);
  for (uint32_t q = 0; q < shape_.queue_pairs; ++q)
    if (recovery_.is_live(q) && !network_.is_up(q % shape_.rails) && is_other_up) give_up(q);
  if (now_ns - waits_since_ns_ >= kRecoveryTimes.limit_ns && recovery_.is_overdue(now_ns))
    return fail("no queue pair lives, or no answer comes");
  if (message.arrivals.is_complete() || !from_peer_.is_closed()) return;
  if (closed_since_ns_ == 0) closed_since_ns_ = now_ns;
  if (now_ns - closed_since_ns_ >= kGraceNs) fail("the peer closed the connection");
}

}  // namespace verbena::protocol::simulation
