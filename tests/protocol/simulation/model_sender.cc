#include "protocol/simulation/model_sender.h"

#include <algorithm>

#include "protocol/sequence.h"

namespace verbena::protocol::simulation {

namespace {

constexpr uint64_t kUnlimitedBytes = uint64_t{1} << 40;

}  // namespace

ModelSender::ModelSender(const Shape& shape, Network& network, ControlChannel& from_peer,
                         ControlChannel& to_peer)
    : shape_(shape),
      network_(network),
      from_peer_(from_peer),
      to_peer_(to_peer),
      next_(shape.first_sequence),
      posting_(shape.first_sequence),
      consumed_(shape.first_sequence),
      next_note_(shape.first_sequence),
      first_home_(choose_home(shape.first_sequence, shape.queue_pairs)),
      home_(first_home_),
      kept_entries_(shape.queue_pairs > 1 ? 1 : 0),
      recovery_(shape.queue_pairs, kRecoveryTimes) {
  for (uint32_t q = 0; q < shape.queue_pairs; ++q) {
    credits_.set_window(q, shape.window);
    lanes_[q] = q;
  }
  share_.start(shape.queue_pairs, shape.speed_mbps, home_, shape.min_stripe_bytes);
  update_rails();
}

uint32_t ModelSender::find_queue_pair(uint32_t lane) const {
  const uint32_t q = network_.lane(lane).queue_pair;
  return lanes_[q] == lane ? q : shape_.queue_pairs;
}

bool ModelSender::post(const uint8_t* data, uint32_t length_bytes, bool may_stage) {
  if (!error_.empty()) return false;
  Message& message = ring_[next_ % kMessageRing];
  // Until a message is known to be consumed, its place says who carried it: its device may have lost it.
  if (message.in_use || count_between(consumed_, next_) >= static_cast<int32_t>(kMessageRing)) {
    progress();
    absorb_credits();
    if (error_.empty()) check_wait();  // nobody may be testing anything
    return false;
  }
  ++open_;
  message = {};
  message.in_use = true;
  message.may_stage = may_stage;
  message.data = data;
  message.length_bytes = length_bytes;
  message.sequence = next_++;
  if (replay_ != nullptr) replay_->forget(message.sequence % kMessageRing);
  post_waiting();
  return true;
}

bool ModelSender::test(uint32_t sequence) {
  Message& message = ring_[sequence % kMessageRing];
  if (!error_.empty()) return false;
  if (!message.is_complete()) {
    progress();
    if (!error_.empty()) return false;
    if (!message.is_complete()) {
      check_wait();
      return false;
    }
  }
  ++(message.path == Path::kStaged ? staged_ : direct_);
  message.in_use = false;
  idle_tests_ = 0;
  if (--open_ == 0 && !recovery_.are_all_live()) attend_at_ns_ = network_.now_ns();
  return true;
}

void ModelSender::absorb_completions() {
  while (const auto sent = network_.poll_sent()) {
    const uint32_t q = find_queue_pair(sent->lane);
    if (q == shape_.queue_pairs) continue;  // a stray
    if (sent->has_failed || sent->is_trial) {
      note_failure(*sent, q);
      continue;
    }
    Message& message = ring_[sent->sequence % kMessageRing];
    if (message.outstanding[q]-- == 0) violation_ = "a completion of nothing";
    share_.note_completed(q, sent->length_bytes, network_.now_ns());
  }
  share_.note_looked(network_.now_ns());
}

void ModelSender::progress() {
  if (!error_.empty()) return;
  absorb_completions();
  if (from_peer_.is_wanted() || !recovery_.are_all_live() || has_replays()) recover();
  if (!error_.empty() || posting_ == next_) return;
  post_waiting();
  if (posting_ != next_) absorb_credits();
}

void ModelSender::absorb_credits() {
  const CreditLine& line = network_.control().credits;
  for (uint32_t q = 0; q < shape_.queue_pairs; ++q)
    if (!credits_.absorb(q, line.returned[q])) violation_ = "the receiver gave back what it never got";
  consumed_ = take_newer(consumed_, line.consumed);
  for (CreditNote note; !shape_.stages && read_note(note);) absorb_note(note);
  if (is_before(next_, consumed_)) violation_ = "consumed before it was sent";
}

void ModelSender::absorb_note(const CreditNote& note) {
  const uint32_t q = note.queue_pair();
  if (q >= shape_.queue_pairs || !credits_.absorb(q, note.expand_returned(credits_.returned(q))))
    violation_ = "a note gives back what was never taken";
  consumed_ = take_newer(consumed_, note.consumed);
}

bool ModelSender::read_grant(uint32_t sequence, Grant& grant) const {
  grant = network_.control().grants[sequence % kMessageRing];
  return grant.sequence_plus_one == uint64_t{sequence} + 1;
}

bool ModelSender::read_note(CreditNote& note) {
  const Grant& grant = network_.control().grants[next_note_ % kMessageRing];
  const uint64_t stamp = grant.sequence_plus_one;
  if (stamp == 0 || is_before(static_cast<uint32_t>(stamp - 1), next_note_)) return false;
  note = grant.note;
  next_note_ = static_cast<uint32_t>(stamp);
  return true;
}

bool ModelSender::may_lack_credits(const Message& message) const {
  return count_free(home_) < few_credits_ || is_too_far_ahead(message) || message.path != Path::kUndecided ||
         (shape_.queue_pairs > 1 && !share_.is_for_home(message.length_bytes));
}

void ModelSender::post_waiting() {
  if (has_replays()) return;
  while (posting_ != next_) {
    Message& message = ring_[posting_ % kMessageRing];
    if (may_lack_credits(message)) absorb_credits();
    post_chunks(message);
    if (!message.is_posted) return;
    ++posting_;
  }
}

bool ModelSender::decide_path(Message& message) {
  if (message.length_bytes <= (message.may_stage ? max_staged_bytes_ : 0)) {
    message.path = Path::kStaged;
    return true;
  }
  if (!read_grant(message.sequence, message.grant)) return false;
  message.path = Path::kDirect;
  if (shape_.stages) return true;
  if (is_before(next_note_, message.sequence + 1)) next_note_ = message.sequence + 1;
  absorb_note(message.grant.note);
  return true;
}

bool ModelSender::is_for_home(const Message& message, uint64_t chunks) const {
  return shape_.queue_pairs == 1 ||
         (share_.is_for_home(message.length_bytes) && count_free(message, home_) >= chunks);
}

bool ModelSender::cut(Message& message) {
  const bool is_staged = message.path == Path::kStaged;
  const uint32_t page_bytes = is_staged ? shape_.page_bytes : 0;
  message.is_whole = (!is_staged || message.length_bytes <= page_bytes) && is_for_home(message, 1);
  message.whole_on = static_cast<uint8_t>(home_);
  if (message.is_whole) return true;
  if (!recovery_.is_any_live()) return false;
  const uint64_t chunks = is_staged ? count_pages(message.length_bytes, page_bytes) : 1;
  if (is_for_home(message, chunks)) {
    message.cut.start_one(message.length_bytes, page_bytes, home_);
    return true;
  }
  const uint32_t unit_bytes = is_staged ? page_bytes : kDirectAlignBytes;
  const Shares shares =
      share_.split(message.length_bytes, unit_bytes, find_room(message, unit_bytes), network_.now_ns());
  message.cut.start(message.length_bytes, page_bytes, shares);
  return true;
}

Shares ModelSender::find_room(const Message& message, uint32_t unit_bytes) const {
  const bool is_staged = message.takes_pages();
  Shares now{}, later{};
  uint64_t sum_now = 0;
  for (uint32_t q = 0; q < shape_.queue_pairs; ++q) {
    const uint64_t free = count_free(message, q), unlimited = recovery_.is_live(q) ? kUnlimitedBytes : 0;
    later[q] = is_staged ? uint64_t{staged_limit(q)} * unit_bytes : unlimited;
    now[q] = is_staged ? std::min(free * unit_bytes, later[q]) : free != 0 ? unlimited : 0;
    sum_now += now[q];
  }
  const bool leaves_now =
      share_.is_short(message.length_bytes) && sum_now >= std::max<uint64_t>(1, message.length_bytes);
  return leaves_now ? now : later;
}

void ModelSender::post_chunks(Message& message) {
  if (message.path == Path::kUndecided) {
    if (is_too_far_ahead(message) || !decide_path(message)) return;
    if (!cut(message)) {
      message.path = Path::kUndecided;
      return;
    }
  }
  if (message.is_whole) {
    if (count_free(message, message.whole_on) == 0) return;
    post_chunk(message, message.whole_on, {0, message.length_bytes, 0, true}, false);
    message.is_posted = true;
    return;
  }
  for (uint32_t q = 0; q < shape_.queue_pairs; ++q)
    while (message.cut.left_bytes(q) != 0 && count_free(message, q) != 0)
      post_chunk(message, q, message.cut.take(q), false);
  message.is_posted = message.cut.is_empty() && !has_replays(message);
}

void ModelSender::post_chunk(Message& message, uint32_t queue_pair, const Chunk& chunk, bool is_replay) {
  const bool is_direct = message.path == Path::kDirect;
  const uint32_t imm =
      encode_tag({static_cast<uint16_t>(message.sequence), chunk.index, chunk.last, is_direct});
  const bool is_write = is_direct || (is_replay && chunk.length_bytes != 0);
  uint8_t* target =
      is_write ? reinterpret_cast<uint8_t*>(message.grant.address) + chunk.offset_bytes : nullptr;
  credits_.take(queue_pair);
  ++message.outstanding[queue_pair];
  share_.note_posted(queue_pair, chunk.length_bytes, network_.now_ns());
  network_.send(lanes_[queue_pair], {imm, message.sequence, chunk.length_bytes,
                                     message.data + chunk.offset_bytes, target, false, is_replay});
}

}  // namespace verbena::protocol::simulation
