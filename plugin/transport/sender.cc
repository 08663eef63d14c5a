#include "transport/sender.h"

#include <algorithm>
#include <string>

#include "base/log.h"
#include "base/parameters.h"
#include "protocol/sequence.h"

namespace verbena::transport {

namespace {

constexpr uint32_t kPostBatch = 16;  // work requests in one chain

using protocol::kMessageRing;

}  // namespace

Sender::Sender(Link link, ControlMemory control, const Peer& peer, std::unique_ptr<PeerWatch> watch)
    : control_(std::move(control)),
      link_(std::move(link)),
      peer_(peer),
      watch_(std::move(watch)),
      wait_(base::parameters().stall_warning_ms) {
  uint32_t entries = 0;
  for (uint32_t q = 0; q < link_.queue_pairs(); ++q) {
    credits_.set_window(q, peer_.window[q]);
    entries += peer_.window[q];
  }
  // Half of the window: see ReceiverCredits::is_update_due.
  max_staged_chunks_ = std::min(entries / 2, protocol::kMaxChunks);
  for (auto& message : ring_) {
    message.kind = RequestKind::kSend;
    message.owner = this;
  }
}

base::Outcome Sender::post(const void* data, uint64_t length_bytes, const Registration* memory,
                           bool may_stage, Request** request) {
  *request = nullptr;
  if (!sticky_) return sticky_;
  SendMessage& message = ring_[next_ % kMessageRing];
  if (message.in_use) return progress();
  message.in_use = true;
  message.may_stage = may_stage;
  message.path = SendMessage::Path::kUndecided;
  message.data = static_cast<const uint8_t*>(data);
  message.memory = memory;
  message.length_bytes = length_bytes;
  message.sequence = next_++;
  message.next_chunk = message.outstanding = 0;
  *request = &message;
  return progress();
}

base::Outcome Sender::test(SendMessage& message, bool* done) {
  *done = false;
  if (!sticky_) return sticky_;
  if (auto outcome = progress(); !outcome) return outcome;
  *done = message.is_posted() && message.outstanding == 0;
  if (*done) {
    count(message);
    message.in_use = false;
    wait_.note_progress();
    return {};
  }
  return wait_.is_check_due() ? check_wait(message) : base::Outcome();
}

base::Outcome Sender::progress() {
  if (auto outcome = absorb_completions(); !outcome) return outcome;
  if (posting_ == next_) return {};
  if (auto outcome = absorb_credits(); !outcome) return outcome;
  while (posting_ != next_) {
    SendMessage& message = ring_[posting_ % kMessageRing];
    if (auto outcome = post_chunks(message); !outcome) return outcome;
    if (!message.is_posted()) break;
    ++posting_;
  }
  return {};
}

base::Outcome Sender::absorb_completions() {
  const bool ok = link_.poll([&](const verbs::Completion& completion, uint32_t queue_pair) {
    if (completion.error == 0) {
      --ring_[cookie_value(completion.cookie) % kMessageRing].outstanding;
    } else if (sticky_) {  // the first cause counts; what follows is flushed work
      sticky_ =
          base::fail(base::Status::kRemote, "send to %s: message %u: %s", watch_->peer().c_str(),
                     cookie_value(completion.cookie), link_.describe_failure(completion, queue_pair).c_str());
    }
  });
  if (ok || !sticky_) return sticky_;
  return stick(
      base::fail(base::Status::kSystem, "send to %s: completion queue failed", watch_->peer().c_str()));
}

base::Outcome Sender::absorb_credits() {
  for (uint32_t q = 0; q < link_.queue_pairs(); ++q) {
    if (!credits_.absorb(q, control_.read_returned(q))) {
      return stick(base::fail(base::Status::kRemote,
                              "send to %s: peer returned more credits than it got (qp %u)",
                              watch_->peer().c_str(), link_.pair(q).number()));
    }
  }
  consumed_ = protocol::take_newer(consumed_, control_.read_consumed());
  if (protocol::is_before(next_, consumed_)) {
    return stick(base::fail(base::Status::kRemote, "send to %s: peer consumed message %u before it was sent",
                            watch_->peer().c_str(), consumed_));
  }
  return {};
}

base::Outcome Sender::post_chunks(SendMessage& message) {
  if (message.path == SendMessage::Path::kUndecided) {
    // The receiver keeps kMessageRing messages apart by their number: none may be further ahead.
    if (protocol::count_between(consumed_, message.sequence) >= static_cast<int32_t>(kMessageRing)) return {};
    if (!decide_path(message)) return {};
    if (auto outcome = check_grant(message); !outcome) return outcome;
  }
  return message.path == SendMessage::Path::kStaged ? post_staged(message) : post_direct(message);
}

bool Sender::decide_path(SendMessage& message) {
  const auto staged = protocol::plan_staged(message.length_bytes, peer_.page_bytes);
  const bool fits = peer_.staging && message.may_stage &&
                    message.length_bytes <= peer_.staging_threshold_bytes &&
                    staged.count <= max_staged_chunks_;
  if (message.length_bytes == 0 || fits) {  // nothing needs no place
    message.path = SendMessage::Path::kStaged;
    message.plan = staged;
    return true;
  }
  if (!control_.read_grant(message.sequence, message.grant)) return false;
  message.path = SendMessage::Path::kDirect;
  message.plan = protocol::plan_direct(message.length_bytes, link_.queue_pairs(), peer_.min_stripe_bytes);
  return true;
}

base::Outcome Sender::check_grant(const SendMessage& message) {
  if (message.path != SendMessage::Path::kDirect || message.grant.length_bytes >= message.length_bytes)
    return {};
  return stick(base::fail(base::Status::kInvalidUsage,
                          "send to %s: message %u is longer than its receive (%llu bytes, room %llu bytes)",
                          watch_->peer().c_str(), message.sequence,
                          static_cast<unsigned long long>(message.length_bytes),
                          static_cast<unsigned long long>(message.grant.length_bytes)));
}

// Gives every queue pair an equal share of what remains, as far as its credits and its send queue reach.
base::Outcome Sender::post_staged(SendMessage& message) {
  const uint32_t pairs = link_.queue_pairs();
  if (message.next_chunk == 0) ++rotation_;
  for (uint32_t i = 0; i < pairs && !message.is_posted(); ++i) {
    const uint32_t q = (rotation_ + i) % pairs;
    const uint32_t remaining = message.plan.count - message.next_chunk;
    const uint32_t share = (remaining + pairs - i - 1) / (pairs - i);
    uint32_t run = std::min({share, credits_.available(q), link_.pair(q).free_slots()});
    while (run != 0) {
      const uint32_t batch = std::min(run, kPostBatch);
      if (auto outcome = post_staged_run(message, q, batch); !outcome) return outcome;
      run -= batch;
    }
  }
  return {};
}

base::Outcome Sender::post_staged_run(SendMessage& message, uint32_t queue_pair, uint32_t count) {
  verbs::WorkRequest requests[kPostBatch];
  const uint32_t local_key =
      message.memory == nullptr ? 0 : message.memory->regions[link_.rail_of(queue_pair)].local_key();
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t index = message.next_chunk++;
    const protocol::Chunk chunk = message.plan.chunk(index);
    requests[i] = {
        .opcode = verbs::Opcode::kSendImm,
        .signaled = i + 1 == count,
        .imm = protocol::encode_tag({static_cast<uint16_t>(message.sequence), static_cast<uint16_t>(index),
                                     index + 1 == message.plan.count, false}),
        .cookie = make_cookie(queue_pair, message.sequence),
        .local = message.data + chunk.offset_bytes,
        .local_key = local_key,
        .length = chunk.length_bytes};
    credits_.take(queue_pair);
  }
  ++message.outstanding;
  auto outcome = link_.pair(queue_pair).post({requests, count});
  return outcome ? outcome : stick(outcome.error());
}

base::Outcome Sender::post_direct(SendMessage& message) {
  const uint32_t pairs = link_.queue_pairs();
  while (!message.is_posted()) {
    const uint32_t index = message.next_chunk;
    const uint32_t q = (message.sequence + index) % pairs;
    if (credits_.available(q) == 0 || link_.pair(q).free_slots() == 0) return {};
    const protocol::Chunk chunk = message.plan.chunk(index);
    const verbs::WorkRequest request{
        .opcode = verbs::Opcode::kWriteImm,
        .signaled = true,
        .imm = protocol::encode_tag({static_cast<uint16_t>(message.sequence), static_cast<uint16_t>(index),
                                     index + 1 == message.plan.count, true}),
        .cookie = make_cookie(q, message.sequence),
        .local = message.data + chunk.offset_bytes,
        .local_key = message.memory->regions[link_.rail_of(q)].local_key(),
        .length = chunk.length_bytes,
        .remote_key = message.grant.remote_keys[peer_.rail_of[q]],
        .remote = message.grant.address + chunk.offset_bytes};
    credits_.take(q);
    ++message.next_chunk;
    ++message.outstanding;
    if (auto outcome = link_.pair(q).post({&request, 1}); !outcome) return stick(outcome.error());
  }
  return {};
}

// A peer that is gone grants nothing any more. Work already posted fails by itself.
base::Outcome Sender::check_wait(const SendMessage& message) {
  if (wait_.is_stall_new()) {
    const char* cause = message.path == SendMessage::Path::kUndecided ? "a grant"
                        : message.is_posted()                         ? "completions"
                                                                      : "credits";
    base::log_warn("send to %s: message %u: waits for %s (VERBENA_STALL_WARNING_MS %lld ms)",
                   watch_->peer().c_str(), message.sequence, cause,
                   static_cast<long long>(base::parameters().stall_warning_ms));
  }
  if (const std::string lost = link_.describe_lost_address(wait_.waited_ns()); !lost.empty()) {
    return stick(base::fail(base::Status::kRemote, "send to %s: message %u: %s", watch_->peer().c_str(),
                            message.sequence, lost.c_str()));
  }
  if (!watch_->is_closed() || !watch_->is_grace_over()) return {};
  return stick(base::fail(base::Status::kRemote,
                          "send to %s: peer closed the connection with %u messages open",
                          watch_->peer().c_str(), next_ - consumed_));
}

base::Outcome Sender::stick(base::Error error) {
  if (sticky_) sticky_ = error;
  return sticky_;
}

void Sender::count(const SendMessage& message) {
  const bool staged = message.path == SendMessage::Path::kStaged;
  ++(staged ? statistics_.sent_staged_messages : statistics_.sent_direct_messages);
  (staged ? statistics_.sent_staged_bytes : statistics_.sent_direct_bytes) += message.length_bytes;
}

}  // namespace verbena::transport
