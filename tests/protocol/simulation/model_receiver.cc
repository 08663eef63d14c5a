#include "protocol/simulation/model_receiver.h"

#include <cstring>

#include "protocol/sequence.h"

namespace verbena::protocol::simulation {

namespace {

constexpr uint32_t kPieceBytes = 48;  // shorter than a page: descriptors split pages

}  // namespace

ModelReceiver::ModelReceiver(const Shape& shape, Network& network, NetUnpackMeta* meta)
    : shape_(shape),
      network_(network),
      queue_(meta),
      next_(shape.first_sequence),
      next_grant_(shape.first_sequence),
      consumed_(shape.first_sequence) {
  for (uint32_t q = 0; q < shape.queue_pairs; ++q) {
    credits_.set_window(q, shape.window);
    for (uint32_t i = 0; i < shape.window; ++i) network_.post_page(q % shape.rails, q * shape.window + i);
  }
}

bool ModelReceiver::post(uint8_t* data, uint32_t room_bytes, bool has_slot, bool is_unpacked) {
  Message& message = ring_[next_ % kMessageRing];
  if (message.is_posted || (has_slot && !queue_.has_free_slot())) return false;
  message.is_posted = true;
  message.is_ready = false;
  message.has_slot = has_slot;
  message.is_unpacked = is_unpacked;
  message.sequence = next_++;
  message.slot = has_slot ? queue_.take_slot() : 0;
  message.room_bytes = room_bytes;
  message.data = data;
  return true;
}

void ModelReceiver::progress() {
  while (const auto received = network_.poll_received()) absorb(*received);
  send_grants();
  if (credits_.is_update_due(consumed_)) {
    const CreditLine line = credits_.take_update(consumed_);
    network_.write_control(0, &line, offsetof(ControlBlock, credits));
  }
}

void ModelReceiver::absorb(const Received& received) {
  const auto tag = decode_tag(received.imm);
  if (!tag || tag->direct != received.is_write) {
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
  if (message.is_ready || (tag->direct && !message.is_posted)) {
    violation_ = "a chunk of a message that is complete or was not granted";
    return;
  }
  if (message.arrivals.record(*tag, received.length_bytes) != Arrival::kNew) {
    violation_ = "a chunk twice or in contradiction";
    return;
  }
  if (tag->direct || received.length_bytes == 0) {
    give_back(received);
  } else {
    message.pages.push_back(received);
  }
}

void ModelReceiver::give_back(const Received& received) {
  network_.post_page(received.queue_pair % shape_.rails, received.page);
  credits_.give_back(received.queue_pair, 1);
}

void ModelReceiver::send_grants() {
  for (; next_grant_ != next_; ++next_grant_) {
    const Message& message = ring_[next_grant_ % kMessageRing];
    if (!message.arrivals.is_empty()) continue;
    Grant grant{};
    grant.address = reinterpret_cast<uintptr_t>(message.data);
    grant.length_bytes = message.room_bytes;
    grant.sequence_plus_one = uint64_t{message.sequence} + 1;
    network_.write_control(next_grant_ % shape_.queue_pairs, &grant,
                           offsetof(ControlBlock, grants) + next_grant_ % kMessageRing * sizeof(grant));
  }
}

bool ModelReceiver::test(uint32_t sequence, uint64_t* bytes) {
  Message& message = ring_[sequence % kMessageRing];
  if (message.is_ready || !message.arrivals.is_complete()) return false;
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
}

}  // namespace verbena::protocol::simulation
