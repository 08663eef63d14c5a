#include "protocol/simulation/model_receiver.h"

#include <algorithm>
#include <cstring>

#include "protocol/sequence.h"

namespace verbena::protocol::simulation {

namespace {

constexpr uint32_t kPieceBytes = 48;  // shorter than a page: descriptors split pages

}  // namespace

ModelReceiver::ModelReceiver(const Shape& shape, Network& network, ControlChannel& from_peer,
                             ControlChannel& to_peer, NetUnpackMeta* meta)
    : shape_(shape),
      network_(network),
      from_peer_(from_peer),
      to_peer_(to_peer),
      queue_(meta),
      next_(shape.first_sequence),
      next_grant_(shape.first_sequence),
      consumed_(shape.first_sequence),
      recovering_until_(shape.first_sequence),
      first_home_(choose_home(shape.first_sequence, shape.queue_pairs)),
      home_(first_home_),
      recovery_(shape.queue_pairs, kRecoveryTimes) {
  for (uint32_t q = 0; q < shape.queue_pairs; ++q) {
    lanes_[q] = q;
    credits_.set_window(q, shape.window);
    for (uint32_t i = 0; i < shape.window; ++i) network_.post_page(q % shape.rails, q * shape.window + i);
  }
}

bool ModelReceiver::post(uint8_t* data, uint32_t room_bytes, bool has_slot, bool is_unpacked) {
  if (!error_.empty()) return false;
  Message& message = ring_[next_ % kMessageRing];
  if (message.is_posted || (has_slot && !queue_.has_free_slot())) {
    progress();
    return false;
  }
  ++open_;
  message.is_posted = true;
  message.is_ready = false;
  message.has_slot = has_slot;
  message.is_unpacked = is_unpacked;
  message.sequence = next_++;
  message.slot = has_slot ? queue_.take_slot() : 0;
  message.room_bytes = room_bytes;
  message.data = data;
  progress();
  return true;
}

void ModelReceiver::absorb_completions() {
  while (const auto received = network_.poll_received()) {
    if (lanes_[received->queue_pair] != received->lane) {
      take_back(*received);  // a stray
    } else if (received->has_failed) {
      take_back(*received);
      give_up(received->queue_pair);
    } else if (received->is_control) {
      control_writes_[received->queue_pair].under_way -= kSignalEvery;
    } else {
      absorb(*received);
    }
  }
}

void ModelReceiver::take_back(const Received& received) {
  if (received.page != kNoReceivePage) network_.post_page(received.queue_pair % shape_.rails, received.page);
}

void ModelReceiver::progress() {
  if (!error_.empty()) return;
  absorb_completions();
  if (from_peer_.is_wanted() || !recovery_.are_all_live() || is_recovering()) recover();
  send_grants();
  if (must_send_credits_ || credits_.is_update_due(consumed_)) send_credits();
}

void ModelReceiver::absorb(const Received& received) {
  if (++held_[received.queue_pair] > shape_.window) violation_ = "a chunk without a credit";
  const auto tag = decode_tag(received.imm);
  if (!tag || (tag->direct && !received.is_write)) {
    violation_ = "a tag that no sender makes";
    return;
  }
  const uint32_t sequence = expand_sequence(consumed_ + kMessageRing / 2, tag->sequence);
  const int32_t ahead = count_between(consumed_, sequence);
  if (ahead < 0 || ahead >= static_cast<int32_t>(kMessageRing)) {
    violation_ = "a chunk of a message outside the ring";
    return;
  }
  Message& message = ring_[sequence % kMessageRing];
  const bool is_closed = !message.is_posted && is_before(sequence, next_);
  if (is_closed || message.is_ready || (received.is_write && !message.is_posted)) {
    violation_ = "a chunk of a message that is complete or was not granted";
    return;
  }
  if (message.arrivals.record(*tag, received.length_bytes) != Arrival::kNew) {
    violation_ = "a chunk twice or in contradiction";
    return;
  }
  if (received.is_write || received.length_bytes == 0) {
    give_back(received);
  } else {
    message.pages.push_back(received);
  }
}

// In runs, as plugin/transport does.
void ModelReceiver::give_back(const Received& received) {
  const uint32_t q = received.queue_pair;
  auto& spare = spares_[q];
  spare.push_back(received.page);
  if (spare.size() >= std::clamp(shape_.window / 8, 1U, 8U)) post_spare(q);
}

void ModelReceiver::post_spare(uint32_t q) {
  auto& spare = spares_[q];
  for (const uint32_t page : spare) network_.post_page(q % shape_.rails, page);
  held_[q] -= static_cast<uint32_t>(spare.size());
  credits_.give_back(q, static_cast<uint32_t>(spare.size()));
  spare.clear();
}

uint32_t ModelReceiver::count_spare() const {
  size_t count = 0;
  for (const auto& spare : spares_) count += spare.size();
  return static_cast<uint32_t>(count);
}

void ModelReceiver::write_control(uint32_t queue_pair, const void* line, size_t offset_bytes) {
  if (lanes_[queue_pair] == kNoLane) return;  // posting fails
  ControlWrites& writes = control_writes_[queue_pair];
  ++writes.under_way;
  network_.write_control(lanes_[queue_pair], line, offset_bytes, ++writes.posted % kSignalEvery == 0);
}

void ModelReceiver::send_grants() {
  for (; next_grant_ != next_ && may_write(); ++next_grant_) {
    const Message& message = ring_[next_grant_ % kMessageRing];
    const bool is_open = message.is_posted && message.sequence == next_grant_ && !message.is_ready;
    if (!is_open || (shape_.stages && !message.arrivals.is_empty() && !is_recovering())) continue;
    if (free_slots(home_) == 0) return;
    Grant grant{};
    grant.address = reinterpret_cast<uintptr_t>(message.data);
    grant.length_bytes = message.room_bytes;
    grant.note = shape_.stages ? CreditNote{} : credits_.take_note(consumed_, home_);
    grant.sequence_plus_one = uint64_t{message.sequence} + 1;
    write_control(home_, &grant, offsetof(ControlBlock, grants) + next_grant_ % kMessageRing * sizeof(grant));
  }
}

void ModelReceiver::send_credits() {
  if (!may_write()) return;
  must_send_credits_ = free_slots(credit_pair_) == 0;
  if (must_send_credits_) return;
  const CreditLine line = credits_.take_update(consumed_);
  write_control(credit_pair_, &line, offsetof(ControlBlock, credits));
}

bool ModelReceiver::test(uint32_t sequence, uint64_t* bytes) {
  Message& message = ring_[sequence % kMessageRing];
  if (!error_.empty()) return false;
  // Only a look that begins after the failure has seen everything that came before it.
  const bool was_broken = !broken_.empty();
  if (!message.arrivals.is_complete()) progress();
  if (!error_.empty()) return false;
  if (!message.arrivals.is_complete()) {
    if (was_broken) {
      fail(broken_);
    } else {
      check_wait(message);
    }
    return false;
  }
  idle_tests_ = 0;
  *bytes = message.arrivals.bytes();
  if (*bytes > message.room_bytes || !place(message)) violation_ = "a message that does not fit";
  message.is_ready = true;
  return true;
}

// By descriptors for the kernel, or by the plugin itself where nobody unpacks.
bool ModelReceiver::place(Message& message) {
  for (const Received& received : message.pages) {
    const uint64_t offset = uint64_t{decode_tag(received.imm)->index} * shape_.page_bytes;
    if (message.is_unpacked) {
      if (!queue_.append(message.slot, received.page * shape_.page_bytes, offset, received.length_bytes,
                         kPieceBytes)) {
        return false;
      }
    } else {
      std::memcpy(message.data + offset, network_.page(received.page), received.length_bytes);
    }
  }
  if (message.is_unpacked) queue_.publish(message.slot);
  return true;
}

void ModelReceiver::consume(uint32_t sequence) {
  Message& message = ring_[sequence % kMessageRing];
  if (message.has_slot) queue_.clear(message.slot);
  for (const Received& received : message.pages) give_back(received);
  message.pages.clear();
  message.arrivals.reset();
  message.is_posted = message.is_ready = false;
  while (consumed_ != next_) {
    const Message& oldest = ring_[consumed_ % kMessageRing];
    if (oldest.is_posted && oldest.sequence == consumed_) break;
    ++consumed_;
  }
  if (must_send_credits_ || credits_.is_update_due(consumed_)) send_credits();
  if (--open_ == 0 && !recovery_.are_all_live()) attend_at_ns_ = network_.now_ns();
}

}  // namespace verbena::protocol::simulation
