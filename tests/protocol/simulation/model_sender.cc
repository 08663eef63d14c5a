#include "protocol/simulation/model_sender.h"

#include <algorithm>

#include "protocol/sequence.h"

namespace verbena::protocol::simulation {

ModelSender::ModelSender(const Shape& shape, Network& network)
    : shape_(shape),
      network_(network),
      next_(shape.first_sequence),
      posting_(shape.first_sequence),
      consumed_(shape.first_sequence),
      max_staged_chunks_(std::min(shape.window * shape.queue_pairs / 2, kMaxChunks)) {
  for (uint32_t q = 0; q < shape.queue_pairs; ++q) credits_.set_window(q, shape.window);
}

bool ModelSender::post(const uint8_t* data, uint32_t length_bytes, bool may_stage) {
  Message& message = ring_[next_ % kMessageRing];
  if (message.in_use) return false;
  message = {};
  message.in_use = true;
  message.may_stage = may_stage;
  message.data = data;
  message.length_bytes = length_bytes;
  message.sequence = next_++;
  return true;
}

bool ModelSender::is_done(uint32_t sequence) {
  Message& message = ring_[sequence % kMessageRing];
  if (!message.is_posted() || message.outstanding != 0) return false;
  ++(message.is_staged ? staged_ : direct_);
  message.in_use = false;
  return true;
}

void ModelSender::progress() {
  while (const auto sequence = network_.poll_sent()) --ring_[*sequence % kMessageRing].outstanding;
  if (!absorb_credits()) violation_ = "the receiver gave back what it never got";
  while (posting_ != next_) {
    Message& message = ring_[posting_ % kMessageRing];
    if (!message.is_decided && !decide(message)) return;
    post_chunks(message);
    if (!message.is_posted()) return;
    ++posting_;
  }
}

bool ModelSender::absorb_credits() {
  for (uint32_t q = 0; q < shape_.queue_pairs; ++q) {
    if (!credits_.absorb(q, network_.control().credits.returned[q])) return false;
  }
  consumed_ = take_newer(consumed_, network_.control().credits.consumed);
  return !is_before(next_, consumed_);
}

bool ModelSender::decide(Message& message) {
  if (count_between(consumed_, message.sequence) >= static_cast<int32_t>(kMessageRing)) return false;
  const ChunkPlan staged = plan_staged(message.length_bytes, shape_.page_bytes);
  message.is_staged =
      message.length_bytes == 0 || (message.may_stage && message.length_bytes <= shape_.threshold_bytes &&
                                    staged.count <= max_staged_chunks_);
  if (!message.is_staged && !read_grant(message)) return false;
  message.plan = message.is_staged
                     ? staged
                     : plan_direct(message.length_bytes, shape_.queue_pairs, shape_.min_stripe_bytes);
  message.is_decided = true;
  return true;
}

bool ModelSender::read_grant(Message& message) const {
  message.grant = network_.control().grants[message.sequence % kMessageRing];
  return message.grant.sequence_plus_one == uint64_t{message.sequence} + 1;
}

void ModelSender::post_chunks(Message& message) {
  if (message.is_staged && message.next_chunk == 0) ++rotation_;
  for (uint32_t i = 0; i < shape_.queue_pairs && !message.is_posted(); ++i) {
    const uint32_t remaining = message.plan.count - message.next_chunk;
    const uint32_t shares = shape_.queue_pairs - i;
    const uint32_t q =
        (message.is_staged ? rotation_ + i : message.sequence + message.next_chunk) % shape_.queue_pairs;
    const uint32_t share = message.is_staged ? (remaining + shares - 1) / shares : 1;
    for (uint32_t run = std::min(share, credits_.available(q)); run != 0; --run) post_chunk(message, q);
  }
}

void ModelSender::post_chunk(Message& message, uint32_t queue_pair) {
  const uint32_t index = message.next_chunk++;
  const Chunk chunk = message.plan.chunk(index);
  const uint32_t imm = encode_tag({static_cast<uint16_t>(message.sequence), static_cast<uint16_t>(index),
                                   index + 1 == message.plan.count, !message.is_staged});
  uint8_t* target =
      message.is_staged ? nullptr : reinterpret_cast<uint8_t*>(message.grant.address) + chunk.offset_bytes;
  credits_.take(queue_pair);
  ++message.outstanding;
  network_.send(queue_pair,
                {imm, message.sequence, message.data + chunk.offset_bytes, chunk.length_bytes, target});
}

}  // namespace verbena::protocol::simulation
