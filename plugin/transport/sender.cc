#include "transport/sender.h"

#include <algorithm>
#include <string>

#include "base/log.h"
#include "base/parameters.h"
#include "transport/advice.h"
#include "transport/observation.h"
#include "transport/recovery_times.h"

namespace verbena::transport {

namespace {

using protocol::kMessageRing;

}  // namespace

Sender::Sender(Link link, ControlMemory control, const Peer& peer, std::unique_ptr<PeerChannel> channel)
    : control_(std::move(control)),
      link_(std::move(link)),
      peer_(peer),
      channel_(std::move(channel)),
      has_choice_(link_.queue_pairs() > 1),
      kept_entries_(has_choice_ ? 1 : 0),
      wait_(base::parameters().stall_warning_ms),
      recovery_(link_.queue_pairs(), read_recovery_times()),
      failed_("send to", channel_->peer(), link_, recovery_),
      first_home_(peer_.home),
      observed_(observe_end(observe::Direction::kSend, channel_->peer(), link_)),
      is_watched_(observed_ != nullptr) {
  for (uint32_t q = 0; q < link_.queue_pairs(); ++q) credits_.set_window(q, peer_.window[q]);
  share_.start(link_.queue_pairs(), peer_.speed_mbps, peer_.home, peer_.min_stripe_bytes);
  for (auto& message : ring_) {
    message.kind = RequestKind::kSend;
    message.owner = this;
  }
  update_rails();
}

base::Outcome Sender::open() {
  join_roster();
  return channel_->watch(this);
}

void Sender::close() {
  channel_->unwatch();
  leave_roster();
  retire();
  end_observation(observed_);
}

Sender::~Sender() {
  close();
}

// The look at the completions is part of progress(): one frame for both.
base::Outcome Sender::absorb_completions() {
  now_ns_ = share_.is_measuring() ? base::monotonic_ns() : protocol::kUnknownNs;
  const auto take = [&](const verbs::Completion& completion, uint32_t queue_pair) {
    if (completion.error != 0 || completion.cookie == kTrialCookie) [[unlikely]]
      return note_failure(completion, queue_pair);
    --ring_[cookie_value(completion.cookie) % kMessageRing].outstanding[queue_pair];
    if (has_choice_) share_.note_completed(queue_pair, cookie_bytes(completion.cookie), now_ns_);
  };
  const bool ok = link_.poll(take);
  if (now_ns_ != protocol::kUnknownNs) share_.note_looked(now_ns_);
  if (ok || !sticky_) return sticky_;
  return stick(base::fail(base::Status::kSystem,
                          "send to %s: completion queue failed: it overran or its device is gone; see dmesg",
                          channel_->peer().c_str()));
}

base::Outcome Sender::progress() {
  if (auto outcome = absorb_completions(); !outcome) return outcome;
  if (is_anything_wrong()) [[unlikely]] {
    if (auto outcome = recover(); !outcome) return outcome;
  }
  if (posting_ == next_) return {};
  if (auto outcome = post_waiting(); !outcome) return outcome;
  return posting_ == next_ ? base::Outcome() : absorb_credits();  // for the next look
}

base::Outcome Sender::post(const void* data, uint64_t length_bytes, const Registration* memory,
                           bool may_stage, Request** request) {
  *request = nullptr;
  if (open_ == 0 && !enter()) return {};
  if (!sticky_) return refuse();
  const uint32_t sequence = next_;
  SendMessage& message = ring_[sequence % kMessageRing];
  if (message.in_use || is_ring_full()) [[unlikely]]
    return wait_for_ring();
  ++open_;
  const bool others_wait = posting_ != sequence;
  message.in_use = true;
  message.may_stage = may_stage;
  message.path = SendMessage::Path::kUndecided;
  message.data = static_cast<const uint8_t*>(data);
  message.memory = memory;
  message.length_bytes = length_bytes;
  message.sequence = sequence;
  message.is_posted = false;
  next_ = sequence + 1;
  *request = &message;
  if (is_watched_) [[unlikely]]
    return begin_watched(message, others_wait);
  return begin(length_bytes, others_wait);
}

// While there is room, what has completed is left to test(): here it would only delay this message.
inline base::Outcome Sender::begin(uint64_t length_bytes, bool others_wait) {
  return others_wait || may_lack_slots(length_bytes) ? progress() : post_waiting();
}

base::Outcome Sender::begin_watched(const SendMessage& message, bool others_wait) {
  if (replay_ != nullptr) replay_->forget(message.sequence % kMessageRing);
  if (observed_ != nullptr) observed_->note_post(message.sequence, message.length_bytes, 0);
  const auto outcome = begin(message.length_bytes, others_wait);
  if (observed_ != nullptr) observed_->end_post();
  return outcome;
}

void Sender::observe_done(const SendMessage& message) {
  if (observed_ != nullptr) observed_->note_done(message.sequence, message.length_bytes);
}

// The caller comes again. It may have no request that it could test meanwhile.
base::Outcome Sender::wait_for_ring() {
  base::Outcome outcome = progress();
  if (outcome) outcome = absorb_credits();
  if (outcome && is_ring_full() && wait_.is_check_due(is_pressing())) outcome = check_wait();
  if (open_ == 0) hand_over();
  return outcome;
}

base::Outcome Sender::test(SendMessage& message, bool* done) {
  *done = false;
  if (!sticky_) return sticky_;
  if (!message.is_complete()) {  // another's test may have found it complete
    if (auto outcome = progress(); !outcome) return outcome;
    if (!message.is_complete()) return wait_.is_check_due(is_pressing()) ? check_wait() : base::Outcome();
  }
  *done = true;
  finish_request(message);
  return {};
}

inline void Sender::finish_request(SendMessage& message) {
  statistics_.sent[static_cast<size_t>(message.path) - 1].count(message.length_bytes);
  if (is_watched_) [[unlikely]]
    observe_done(message);
  message.in_use = false;
  wait_.note_progress();
  if (--open_ == 0) hand_over();
}

void Sender::hand_over() {
  if (!recovery_.are_all_live()) want();
  leave();
}

base::Outcome Sender::refuse() {
  if (open_ == 0) leave();
  return sticky_;
}

base::Outcome Sender::absorb_credits() {
  for (uint32_t q = 0; q < link_.queue_pairs(); ++q) {
    if (!credits_.absorb(q, control_.read_returned(q))) {
      return stick(
          fail_at_pair("send to", channel_->peer(), link_, q, "peer returned more credits than it got"));
    }
  }
  consumed_ = protocol::take_newer(consumed_, control_.read_consumed());
  for (protocol::CreditNote note; !peer_.staging && control_.read_note(&next_note_, note);) {
    // Bounds the loop too: stamps that led round the number range would never let it end.
    if (is_ungrantable(next_note_ - 1)) return fail_stamp();
    if (auto outcome = absorb_note(note); !outcome) return outcome;
  }
  return protocol::is_before(next_, consumed_) ? fail_consumed() : base::Outcome();
}

base::Outcome Sender::fail_note(const protocol::CreditNote& note) {
  return stick(
      base::fail(base::Status::kRemote,
                 "send to %s: peer returned more credits than it got (a grant's note, queue pair index %u)%s",
                 channel_->peer().c_str(), note.queue_pair(), kPeerAdvice));
}

base::Outcome Sender::fail_stamp() {
  return stick(base::fail(base::Status::kRemote,
                          "send to %s: peer granted message %u, which is too far ahead of message %u%s",
                          channel_->peer().c_str(), next_note_ - 1, next_, kPeerAdvice));
}

base::Outcome Sender::fail_consumed() {
  return stick(base::fail(base::Status::kRemote, "send to %s: peer consumed message %u before it was sent%s",
                          channel_->peer().c_str(), consumed_, kPeerAdvice));
}

base::Outcome Sender::fail(uint32_t sequence, const std::string& cause) {
  if (!sticky_) return sticky_;  // the first cause counts
  return stick(base::fail(base::Status::kRemote, "send to %s: message %u: %s", channel_->peer().c_str(),
                          sequence, cause.c_str()));
}

base::Outcome Sender::stick(base::Error error) {
  if (sticky_) {
    sticky_ = error;
    if (observed_ != nullptr) observed_->note_failed();
    report_failure();
  }
  return sticky_;
}

}  // namespace verbena::transport
