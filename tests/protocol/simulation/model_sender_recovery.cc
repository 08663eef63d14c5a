// As plugin/transport/sender_recovery.cc.
#include <algorithm>
#include <utility>

#include "protocol/sequence.h"
#include "protocol/simulation/model_sender.h"

namespace verbena::protocol::simulation {

using Phase = QueuePairLives::Phase;

struct ModelSender::Host {
  ModelSender& sender;

  void stop(uint32_t q) {
    sender.network_.fail_sender(sender.lanes_[q]);
    sender.credits_.stop(q);
    sender.share_.forget_outstanding(q);
    // A message that was to leave over it, and has not begun to, chooses again.
    Message& message = sender.ring_[sender.posting_ % kMessageRing];
    const bool is_bound = message.path != Path::kUndecided && message.is_whole;
    if (sender.posting_ != sender.next_ && is_bound && message.whole_on == q) message.path = Path::kUndecided;
  }
  void send(const RecoveryRecord& record) { sender.to_peer_.send(record); }
  bool replay(uint32_t q, const ArrivedRecord& arrived) { return sender.replay(q, arrived); }
  bool is_usable(uint32_t q) { return sender.network_.is_up(q % sender.shape_.rails); }
  bool offer(uint32_t q, RecoveryRecord& record) {
    if (std::exchange(sender.fails_offer, false)) return false;
    sender.lanes_[q] = sender.network_.make_lane(q);
    record.pair.number = sender.lanes_[q];
    return true;
  }
  bool connect(uint32_t q, const RecoveryRecord& answer) {
    sender.answers_[q] = answer;
    Lane& lane = sender.network_.lane(sender.lanes_[q]);
    if (std::exchange(sender.fails_connect, false) || lane.sender.has_failed) return false;
    lane.sender.is_ready = true;
    Packet trial;
    trial.is_trial = true;
    sender.network_.send(sender.lanes_[q], trial);
    return true;
  }
  void revive(uint32_t q) {
    const RecoveryRecord& answer = sender.answers_[q];
    sender.credits_.restart(q, sender.shape_.window, answer.returned, answer.held);
    ++sender.revivals_;
    sender.update_rails();
  }
};

void ModelSender::update_rails() {
  home_ = recovery_.find_live(first_home_);
  share_.set_home(home_);
  few_credits_ = staged_limit(home_);
  uint32_t staged_chunks = 0;
  for (uint32_t q = 0; q < shape_.queue_pairs; ++q) staged_chunks += staged_limit(q);
  staged_chunks = std::min(staged_chunks, kMaxChunks);
  max_staged_bytes_ =
      shape_.stages ? std::min(shape_.threshold_bytes, uint64_t{staged_chunks} * shape_.page_bytes) : 0;
}

// Something other than a success: a failure, or the answer to a trial.
void ModelSender::note_failure(const Sent& sent, uint32_t queue_pair) {
  if (sent.has_failed) return give_up(queue_pair);
  Host host{*this};
  recovery_.pass_trial(host, queue_pair, network_.now_ns());
}

void ModelSender::give_up(uint32_t queue_pair) {
  Host host{*this};
  recovery_.fail(host, queue_pair, network_.now_ns());
  update_rails();
}

void ModelSender::recover() {
  network_.interleave();
  const bool has_news = from_peer_.is_wanted();
  from_peer_.note_attended();
  const bool is_closed = from_peer_.is_closed();
  Host host{*this};
  if (has_news) absorb_records(host);
  recovery_.step(host, network_.now_ns());
  if (is_closed && recovery_.find_waiting_since() != kNever) return fail("failed, and the peer is gone");
  if (error_.empty() && has_replays()) post_replays();
}

void ModelSender::absorb_records(Host& host) {
  while (const auto message = from_peer_.receive()) {
    if (!is_sane(message->record, shape_.queue_pairs) ||
        !recovery_.absorb(host, message->record, message->arrived.get(), network_.now_ns())) {
      if (error_.empty()) violation_ = "the sender refuses a recovery record";
      return;
    }
    update_rails();
  }
}

void ModelSender::attend() {
  if (!error_.empty() || (!from_peer_.is_wanted() && network_.now_ns() < attend_at_ns_)) return;
  attend_at_ns_ = kNever;
  absorb_completions();
  recover();
  if (!error_.empty() || recovery_.are_all_live()) return;
  bool is_polling = false;
  for (uint32_t q = 0; q < shape_.queue_pairs; ++q) is_polling |= recovery_.phase(q) == Phase::kTrial;
  const int64_t poll_ns = network_.now_ns() + kStepNs;
  attend_at_ns_ = is_polling ? poll_ns : std::max(poll_ns, recovery_.find_next_ns());
}

// Its process is gone, or it has given up.
void ModelSender::leave() {
  for (uint32_t id = 0; id < network_.count_lanes(); ++id) network_.fail_sender(id);
  to_peer_.close(false);
}

// For a wait that lasts.
void ModelSender::check_wait() {
  const int64_t now_ns = network_.now_ns();
  if (++idle_tests_ % kTestsPerCheck != 0) return;
  network_.interleave();
  if (idle_tests_ == kTestsPerCheck) waits_since_ns_ = now_ns;
  bool is_other_up = false;
  for (uint32_t q = 0; q < shape_.queue_pairs; ++q)
    is_other_up |= recovery_.is_live(q) && network_.is_up(q % shape_.rails);
  for (uint32_t q = 0; q < shape_.queue_pairs; ++q)
    if (recovery_.is_live(q) && !network_.is_up(q % shape_.rails) && is_other_up) give_up(q);
  if (now_ns - waits_since_ns_ >= kRecoveryTimes.limit_ns && recovery_.is_overdue(now_ns))
    return fail("no queue pair lives, or no answer comes");
  if (!from_peer_.is_closed()) return;
  if (closed_since_ns_ == 0) closed_since_ns_ = now_ns;
  if (now_ns - closed_since_ns_ >= kGraceNs) fail("the peer closed the connection");
}

// `queue_pair` is dead on both ends, and `arrived` is all that ever came of it.
bool ModelSender::replay(uint32_t queue_pair, const ArrivedRecord& arrived) {
  lanes_[queue_pair] = kNoLane;
  for (Message& message : ring_) message.outstanding[queue_pair] = 0;
  if (is_before(next_, arrived.consumed)) return false;
  for (uint32_t ahead = 0; ahead < kMessageRing && arrived.consumed + ahead != next_; ++ahead) {
    Message& message = ring_[(arrived.consumed + ahead) % kMessageRing];
    const bool has_begun = message.sequence == arrived.consumed + ahead && message.path != Path::kUndecided;
    if (has_begun && !replay_message(message, ahead, queue_pair, arrived)) return false;
  }
  return true;
}

// False: something that counted as delivered is lost.
bool ModelSender::replay_message(Message& message, uint32_t ahead, uint32_t queue_pair,
                                 const ArrivedRecord& arrived) {
  const uint32_t slot = message.sequence % kMessageRing;
  if (message.is_whole && !message.is_posted && !has_replays(message)) return true;  // chooses again
  const uint32_t chunks = message.is_whole ? 1 : message.cut.count();
  if (replay_ == nullptr) replay_ = std::make_unique<Replay>();
  for (uint32_t index = 0; index < chunks; ++index) {
    const uint32_t by_cut = message.is_whole ? message.whole_on : message.cut.carrier_of(index);
    if (!replay_->is_carried_by(slot, index, by_cut, queue_pair) || arrived.has(ahead, index)) continue;
    if (!message.in_use) {
      fail("the peer's device lost what it had acknowledged");
      return false;
    }
    replay_->add(slot, index);
  }
  if (!message.is_whole) message.cut.abandon(queue_pair);
  if (replay_->pending(slot) != 0) message.is_posted = false;
  return true;
}

// Before anything new, oldest first.
void ModelSender::post_replays() {
  for (uint32_t sequence = next_ - kMessageRing; sequence != next_; ++sequence) {
    Message& message = ring_[sequence % kMessageRing];
    if (message.sequence != sequence || !has_replays(message)) continue;
    post_replays_of(message);
    if (has_replays(message)) return;
  }
}

void ModelSender::post_replays_of(Message& message) {
  const uint32_t slot = message.sequence % kMessageRing;
  if (message.length_bytes != 0 && !read_grant(message.sequence, message.grant)) return;
  while (replay_->pending(slot) != 0) {
    uint32_t best = 0;
    for (uint32_t q = 1; q < shape_.queue_pairs; ++q)
      if (count_free(q) > count_free(best)) best = q;
    if (count_free(best) == 0) return absorb_credits();
    const uint32_t index = replay_->first(slot);
    const Chunk chunk =
        message.is_whole ? Chunk{0, message.length_bytes, 0, true} : message.cut.chunk_at(index);
    replay_->note_sent(slot, index, best);
    ++replays_;
    post_chunk(message, best, chunk, true);
  }
  message.is_posted = message.is_whole || message.cut.is_empty();
}

}  // namespace verbena::protocol::simulation
