#include "protocol/simulation/shape.h"

#include <algorithm>

#include "protocol/random.h"

namespace verbena::protocol::simulation {

namespace {

// Where 16 and 32 bits wrap within a run, and elsewhere.
uint32_t draw_first_sequence(Random& random) {
  switch (random.between(0, 3)) {
    case 0:
      return 0;
    case 1:
      return 0xFFFFU - random.between(0, 40);
    case 2:
      return 0xFFFFFFFFU - random.between(0, 40);
    default:
      return static_cast<uint32_t>(random.next());
  }
}

uint32_t draw_length_bytes(Random& random, const Shape& shape) {
  switch (random.between(0, 4)) {
    case 0:
      return random.between(0, 3);
    case 1:  // about whole pages
      return random.between(1, 6) * shape.page_bytes + random.between(0, 2) - 1;
    case 2:
      return random.between(0, 2 * shape.page_bytes);
    default:
      return random.between(0, 40 * shape.page_bytes);
  }
}

MessageShape draw_message(Random& random, const Shape& shape, uint32_t staged_percent) {
  MessageShape message{};
  message.length_bytes = draw_length_bytes(random, shape);
  message.room_bytes = message.length_bytes + (random.happens(50) ? 0 : random.between(0, 300));
  // Mostly both ends agree about who unpacks; when they do not, the bytes must be right all the same.
  message.may_stage = random.happens(staged_percent);
  message.has_slot = random.happens(80);
  message.is_unpacked = message.has_slot && (random.happens(10) || message.may_stage);
  return message;
}

}  // namespace

Shape draw_shape(uint64_t seed) {
  Random random(seed);
  Shape shape;
  shape.rails = random.between(1, 4);
  shape.queue_pairs = std::min(kMaxQueuePairs, shape.rails * random.between(1, 3));
  shape.page_bytes = 32U << random.between(0, 3);
  shape.window = random.between(1, 24);
  shape.threshold_bytes = random.happens(15) ? 0 : random.between(0, 40) * shape.page_bytes;
  shape.min_stripe_bytes = 128U << random.between(0, 4);
  shape.first_sequence = draw_first_sequence(random);
  shape.posts_ahead = random.happens(30) ? kMessageRing : random.between(1, 8);
  shape.network_percent = random.between(10, 90);
  shape.freeze_percent = random.happens(50) ? 0 : random.between(1, 20);
  shape.freeze_steps = 1U << random.between(2, 9);
  shape.retransmit_percent = random.happens(50) ? 0 : random.between(1, 40);
  const uint32_t staged_percent = random.between(0, 4) * 25, count = random.between(1, 150);
  for (uint32_t i = 0; i < count; ++i) shape.messages.push_back(draw_message(random, shape, staged_percent));
  return shape;
}

}  // namespace verbena::protocol::simulation
