// What a receiver does when a queue pair fails, is replaced, and lives again; protocol/recovery.h decides
// when.
#include <algorithm>
#include <string>

#include "base/clock.h"
#include "base/log.h"
#include "base/parameters.h"
#include "transport/advice.h"
#include "transport/receiver.h"
#include "transport/recovery_times.h"

namespace verbena::transport {

using protocol::ArrivedRecord;
using protocol::kMessageRing;
using protocol::RecoveryRecord;
using Phase = protocol::QueuePairLives::Phase;

struct Receiver::RecoveryHost {
  Receiver& receiver;

  Link& link() { return receiver.parts_.link; }
  void stop(uint32_t q) {
    link().pair(q).stop();
    receiver.stopped_at_ns_[q] = base::monotonic_ns();
    receiver.wait_stamps_.restart();
  }
  void send(const RecoveryRecord& record) { receiver.channel_->send(record); }
  // Asked before the look: whatever came until then is found by it.
  bool is_drained(uint32_t q) {
    const bool has_had_time = base::monotonic_ns() - receiver.stopped_at_ns_[q] >= kDrainMs * base::kNsPerMs;
    if (!link().pair(q).is_drained() && !has_had_time) return false;
    return static_cast<bool>(receiver.absorb_completions());
  }
  void send_arrived(const RecoveryRecord& record) {
    ArrivedRecord arrived;
    receiver.describe_arrived(arrived);
    receiver.channel_->send(record, &arrived);
    link().bury(record.queue_pair);
  }
  void regrant() {
    receiver.update_rails();
    receiver.next_grant_ = receiver.consumed_;
    receiver.recovering_until_ = receiver.consumed_ + kMessageRing;
    receiver.is_recovering_ = true;
    receiver.send_grants();
    receiver.must_send_credits_ = true;
  }
  bool answer(uint32_t q, const RecoveryRecord& offer, RecoveryRecord& record) {
    if (!link().is_healthy(q) || !link().renew(q, &record.pair, &record.rail)) return false;
    if (!link().connect_one(q, offer.rail, offer.pair)) {
      link().pair(q).stop();
      link().bury(q);
      return false;
    }
    record.returned = receiver.credits_.returned(q);
    record.held = receiver.held_[q];
    return true;
  }
  void revive(uint32_t q) {
    ++receiver.statistics_.revived_queue_pairs;
    if (receiver.observed_ != nullptr) receiver.observed_->note_rail_up(link().rail_of(q), q);
    regrant();
    base::log_info("receive from %s: %s: is used again", receiver.channel_->peer().c_str(),
                   link().describe(q).c_str());
  }
};

void Receiver::update_rails() {
  // Only away from one that has died: a line on its way over one that lives must not land on a newer one.
  if (!recovery_.is_live(home_)) home_ = recovery_.find_live(first_home_);
  if (!recovery_.is_live(credit_pair_)) credit_pair_ = recovery_.find_live(0);
  note_writable();
}

void Receiver::give_up(uint32_t queue_pair, const std::string& cause) {
  const Phase phase = recovery_.phase(queue_pair);
  if (phase != Phase::kLive && phase != Phase::kTrial) return;  // flushed work
  if (!base::parameters().failover) return note_broken(cause);
  failed_.note(queue_pair, cause);
  RecoveryHost host{*this};
  recovery_.fail(host, queue_pair, base::monotonic_ns());
  update_rails();
  if (phase == Phase::kLive) count_failed(queue_pair);
}

void Receiver::count_failed(uint32_t queue_pair) {
  ++statistics_.failed_queue_pairs;
  if (observed_ != nullptr) observed_->note_rail_down(parts_.link.rail_of(queue_pair), queue_pair);
}

void Receiver::describe_arrived(ArrivedRecord& record) const {
  record.consumed = consumed_;
  for (uint32_t ahead = 0; ahead < kMessageRing; ++ahead) {
    const uint32_t sequence = consumed_ + ahead;
    const ReceiveMessage& message = ring_[sequence % kMessageRing];
    const bool has_closed = protocol::is_before(sequence, next_) && !message.is_posted;
    if (has_closed || message.arrivals.is_complete()) {
      record.complete |= 1U << ahead;
    } else {
      record.chunks[ahead] = message.arrivals.bitmap();
    }
  }
}

base::Outcome Receiver::recover() {
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
  is_recovering_ = is_recovering_ && protocol::is_before(consumed_, recovering_until_);
  if (is_recovering_) hurry_entries();
  // Without a peer nothing more comes over what has failed. What is here already is still delivered.
  if (is_closed && broken_.empty() && recovery_.find_waiting_since() != protocol::kNever)
    note_broken(failed_.describe() + "; and the peer is gone");
  return {};
}

// What is sent again may have to make do with one entry of a queue pair, used again and again.
void Receiver::hurry_entries() {
  for (uint32_t q = 0; q < parts_.link.queue_pairs(); ++q) {
    if (spares_[q].count != 0) static_cast<void>(repost_spare(q));  // a failure sticks
  }
  must_send_credits_ |= credits_.is_anything_untold(consumed_);
}

base::Outcome Receiver::absorb_records(RecoveryHost& host, int64_t now_ns) {
  const ArrivedRecord* arrived = nullptr;
  for (int left = kMostRecords;; --left) {
    if (left == 0) return want(), base::Outcome();  // the others on the service thread are due
    const RecoveryRecord* record = channel_->receive(&arrived);
    if (record == nullptr) return {};
    if (failed_.note_record(*record)) count_failed(record->queue_pair);
    if (!protocol::is_sane(*record, parts_.link.queue_pairs()) || !recovery_.absorb(host, *record, now_ns)) {
      return stick(base::fail(
          base::Status::kRemote, "receive from %s: a recovery record makes no sense (kind %u, qp index %u)%s",
          channel_->peer().c_str(), static_cast<unsigned>(record->kind), record->queue_pair, kPeerAdvice));
    }
    update_rails();
    if (record->kind == protocol::RecoveryKind::kDown) failed_.log_loss(record->queue_pair);
  }
}

int64_t Receiver::attend() {
  if (!sticky_) return protocol::kNever;
  if (!absorb_completions() || !recover() || recovery_.are_all_live()) return protocol::kNever;
  const bool is_polling = channel_->has_unsent() || recovery_.is_polling();
  return is_polling ? base::monotonic_ns() + kServicePollMs * base::kNsPerMs : protocol::kNever;
}

void Receiver::hand_over() {
  if (!recovery_.are_all_live()) want();
  leave();
}

base::Outcome Receiver::refuse() {
  if (open_ == 0) leave();
  return sticky_;
}

// For a wait that lasts.
base::Outcome Receiver::check_rails(const ReceiveMessage& message) {
  for (uint32_t q = 0; q < parts_.link.queue_pairs(); ++q) {
    const std::string cause = failed_.find_dying(q, wait_.waited_ns());
    if (!cause.empty()) give_up(q, cause);
  }
  if (!failed_.is_over(wait_.waited_ns())) return {};
  return stick(base::fail(base::Status::kRemote,
                          "receive from %s: message %u: %s (VERBENA_FAILOVER_TIMEOUT_MS %lld ms)",
                          channel_->peer().c_str(), message.sequence, failed_.describe().c_str(),
                          static_cast<long long>(base::parameters().failover_timeout_ms)));
}

}  // namespace verbena::transport
