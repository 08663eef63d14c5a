// What a sender does when a queue pair fails, is replaced, and lives again; protocol/recovery.h decides when.
#include <algorithm>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "base/parameters.h"
#include "transport/advice.h"
#include "transport/recovery_times.h"
#include "transport/sender.h"

namespace verbena::transport {

using protocol::ArrivedRecord;
using protocol::kMessageRing;
using protocol::RecoveryRecord;
using Phase = protocol::QueuePairLives::Phase;

struct Sender::RecoveryHost {
  Sender& sender;

  void stop(uint32_t q) {
    sender.link_.pair(q).stop();
    sender.credits_.stop(q);
    sender.share_.forget_outstanding(q);
    sender.wait_stamps_.restart();
    // A message that was to leave over it, and has not begun to, chooses again.
    SendMessage& message = sender.ring_[sender.posting_ % kMessageRing];
    const bool is_bound =
        !message.is_posted && message.path != SendMessage::Path::kUndecided && message.is_whole;
    if (sender.posting_ != sender.next_ && is_bound && message.whole_on == q)
      message.path = SendMessage::Path::kUndecided;
  }
  void send(const RecoveryRecord& record) { sender.channel_->send(record); }
  bool replay(uint32_t q, const ArrivedRecord& arrived) { return sender.replay(q, arrived); }
  bool is_usable(uint32_t q) const { return sender.link_.is_healthy(q); }
  bool offer(uint32_t q, RecoveryRecord& record) {
    return static_cast<bool>(sender.link_.renew(q, &record.pair, &record.rail));
  }
  bool connect(uint32_t q, const RecoveryRecord& answer) {
    sender.answers_[q] = answer;
    if (!sender.link_.connect_one(q, answer.rail, answer.pair)) return false;
    // No bytes: neither key nor address is looked at.
    const verbs::WorkRequest trial{.opcode = verbs::Opcode::kWrite, .signaled = true, .cookie = kTrialCookie};
    return static_cast<bool>(sender.link_.pair(q).post(trial));
  }
  void revive(uint32_t q) {
    const RecoveryRecord& answer = sender.answers_[q];
    sender.credits_.restart(q, sender.peer_.window[q], answer.returned, answer.held);
    ++sender.statistics_.revived_queue_pairs;
    if (sender.observed_ != nullptr) sender.observed_->note_rail_up(sender.link_.rail_of(q), q);
    sender.update_rails();
    base::log_info("send to %s: %s: is used again", sender.channel_->peer().c_str(),
                   sender.link_.describe(q).c_str());
  }
};

// What follows from which queue pairs live.
void Sender::update_rails() {
  peer_.home = recovery_.find_live(first_home_);
  share_.set_home(peer_.home);
  few_credits_ = staged_limit(peer_.home);
  uint32_t staged_chunks = 0;
  for (uint32_t q = 0; q < link_.queue_pairs(); ++q) staged_chunks += staged_limit(q);
  staged_chunks = std::min(staged_chunks, protocol::kMaxChunks);
  max_staged_bytes_ =
      peer_.staging ? std::min(peer_.staging_threshold_bytes, uint64_t{staged_chunks} * peer_.page_bytes) : 0;
}

// Something other than a success: a failure, or the answer to a trial.
void Sender::note_failure(const verbs::Completion& completion, uint32_t queue_pair) {
  if (completion.error == 0) {
    RecoveryHost host{*this};
    recovery_.pass_trial(host, queue_pair, base::monotonic_ns());
    return;
  }
  const Phase phase = recovery_.phase(queue_pair);
  if (phase != Phase::kLive && phase != Phase::kTrial) return;  // flushed work
  const std::string cause = link_.describe_failure(completion, queue_pair);
  if (verbs::is_request_at_fault(completion.error))
    return static_cast<void>(fail(cookie_value(completion.cookie), cause));
  give_up(queue_pair, cause);
}

// What could not be posted is sent again with the rest.
base::Outcome Sender::fail_post(uint32_t queue_pair) {
  give_up(queue_pair, link_.describe(queue_pair) + ": cannot post, an earlier line has the device's error");
  return sticky_;
}

void Sender::count_failed(uint32_t queue_pair) {
  ++statistics_.failed_queue_pairs;
  if (observed_ != nullptr) observed_->note_rail_down(link_.rail_of(queue_pair), queue_pair);
}

void Sender::give_up(uint32_t queue_pair, const std::string& cause) {
  if (!base::parameters().failover) return static_cast<void>(fail(consumed_, cause));
  if (recovery_.is_live(queue_pair)) count_failed(queue_pair);
  failed_.note(queue_pair, cause);
  RecoveryHost host{*this};
  recovery_.fail(host, queue_pair, base::monotonic_ns());
  update_rails();
}

// In the data thread's calls while anything is wrong or the peer has sent something.
base::Outcome Sender::recover() {
  const bool has_news = take_wish();
  tell_if_asked();
  const bool is_closed = channel_->is_closed();
  const int64_t now_ns = base::monotonic_ns();
  RecoveryHost host{*this};
  if (has_news) {
    if (auto outcome = absorb_records(host, now_ns); !outcome) return outcome;
  }
  recovery_.step(host, now_ns);
  if (channel_->has_unsent()) channel_->push();
  if (is_closed && recovery_.find_waiting_since() != protocol::kNever) {
    return fail(consumed_, failed_.describe() + "; and the peer is gone");
  }
  return has_any_replays() ? post_replays() : base::Outcome();
}

base::Outcome Sender::absorb_records(RecoveryHost& host, int64_t now_ns) {
  const ArrivedRecord* arrived = nullptr;
  for (int left = kMostRecords;; --left) {
    if (left == 0) return want(), base::Outcome();  // the others on the service thread are due
    const RecoveryRecord* record = channel_->receive(&arrived);
    if (record == nullptr) return {};
    if (failed_.note_record(*record)) count_failed(record->queue_pair);
    if (!protocol::is_sane(*record, link_.queue_pairs()) ||
        !recovery_.absorb(host, *record, arrived, now_ns)) {
      return sticky_
                 ? stick(base::fail(base::Status::kRemote,
                                    "send to %s: a recovery record makes no sense (kind %u, qp index %u)%s",
                                    channel_->peer().c_str(), static_cast<unsigned>(record->kind),
                                    record->queue_pair, kPeerAdvice))
                 : sticky_;
    }
    update_rails();
    // Only now: a peer that is done and gone fails queue pairs too, and never answers.
    if (arrived != nullptr) failed_.log_loss(record->queue_pair);
  }
}

int64_t Sender::attend() {
  if (!sticky_) return protocol::kNever;
  if (!absorb_completions() || !recover() || recovery_.are_all_live()) return protocol::kNever;
  const int64_t poll_ns = base::monotonic_ns() + kServicePollMs * base::kNsPerMs;
  bool is_polling = channel_->has_unsent();
  for (uint32_t q = 0; q < link_.queue_pairs(); ++q) is_polling |= recovery_.phase(q) == Phase::kTrial;
  return is_polling ? poll_ns : std::max(poll_ns, recovery_.find_next_ns());
}

// For a wait that lasts.
base::Outcome Sender::check_rails() {
  for (uint32_t q = 0; q < link_.queue_pairs(); ++q) {
    const std::string cause = failed_.find_dying(q, wait_.waited_ns());
    if (!cause.empty()) give_up(q, cause);
  }
  if (!sticky_ || !failed_.is_over(wait_.waited_ns())) return sticky_;
  return stick(base::fail(base::Status::kRemote,
                          "send to %s: message %u: %s (VERBENA_FAILOVER_TIMEOUT_MS %lld ms)",
                          channel_->peer().c_str(), consumed_, failed_.describe().c_str(),
                          static_cast<long long>(base::parameters().failover_timeout_ms)));
}

// `queue_pair` is dead on both ends, and `arrived` is all that ever came of it.
bool Sender::replay(uint32_t queue_pair, const ArrivedRecord& arrived) {
  link_.bury(queue_pair);
  for (SendMessage& message : ring_) message.outstanding[queue_pair] = 0;
  if (protocol::is_before(next_, arrived.consumed)) return false;
  for (uint32_t ahead = 0; ahead < kMessageRing && arrived.consumed + ahead != next_; ++ahead) {
    SendMessage& message = ring_[(arrived.consumed + ahead) % kMessageRing];
    const bool has_begun =
        message.sequence == arrived.consumed + ahead && message.path != SendMessage::Path::kUndecided;
    if (has_begun && !replay_message(message, ahead, queue_pair, arrived)) return false;
  }
  return true;
}

// False: something that counted as delivered is lost.
bool Sender::replay_message(SendMessage& message, uint32_t ahead, uint32_t queue_pair,
                            const ArrivedRecord& arrived) {
  const uint32_t slot = message.sequence % kMessageRing;
  if (message.is_whole && !message.is_posted && !has_replays(message)) return true;  // chooses again
  const uint32_t chunks = message.is_whole ? 1 : message.cut.count();
  if (replay_ == nullptr) replay_ = std::make_unique<protocol::Replay>();
  is_watched_ = true;
  for (uint32_t index = 0; index < chunks; ++index) {
    const uint32_t by_cut = message.is_whole ? message.whole_on : message.cut.carrier_of(index);
    if (!replay_->is_carried_by(slot, index, by_cut, queue_pair) || arrived.has(ahead, index)) continue;
    if (!message.in_use) {
      return static_cast<bool>(fail(message.sequence, "the peer's device lost what it had acknowledged (" +
                                                          failed_.cause(queue_pair) + ")"));
    }
    replay_->add(slot, index);
  }
  if (!message.is_whole) message.cut.abandon(queue_pair);
  if (replay_->pending(slot) != 0) message.is_posted = false;
  return true;
}

// Before anything new, oldest first.
base::Outcome Sender::post_replays() {
  for (uint32_t sequence = next_ - kMessageRing; sequence != next_; ++sequence) {
    SendMessage& message = ring_[sequence % kMessageRing];
    if (message.sequence != sequence || !has_replays(message)) continue;
    if (auto outcome = post_replays_of(message); !outcome || has_replays(message)) return outcome;
  }
  return {};
}

// Into the place that the receiver grants, whatever way the message went at first: later messages may hold
// every page there is until this one is whole. A write needs an entry too, but gives it back at once.
base::Outcome Sender::post_replays_of(SendMessage& message) {
  const uint32_t slot = message.sequence % kMessageRing;
  if (message.length_bytes != 0) {
    if (!control_.read_grant(message.sequence, message.grant)) return {};
    if (message.grant.length_bytes < message.length_bytes) return fail_grant(message);
  }
  while (replay_->pending(slot) != 0) {
    uint32_t best = 0;
    for (uint32_t q = 1; q < link_.queue_pairs(); ++q)
      if (count_free(q) > count_free(best)) best = q;
    if (count_free(best) == 0) return absorb_credits();
    const uint32_t index = replay_->first(slot);
    const protocol::Chunk chunk =
        message.is_whole ? protocol::Chunk{0, static_cast<uint32_t>(message.length_bytes), 0, true}
                         : message.cut.chunk_at(index);
    replay_->note_sent(slot, index, best);
    ++statistics_.replayed_chunks;
    if (observed_ != nullptr)
      observed_->note_replay(message.sequence, link_.rail_of(best), chunk.length_bytes);
    if (auto outcome = post_again(message, best, chunk); !outcome) return outcome;
  }
  message.is_posted = message.is_whole || message.cut.is_empty();
  return {};
}

}  // namespace verbena::transport
