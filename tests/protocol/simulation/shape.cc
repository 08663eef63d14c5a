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

// `most_pages` long at most.
uint32_t draw_length_bytes(Random& random, const Shape& shape, uint32_t most_pages) {
  switch (random.between(0, 4)) {
    case 0:
      return random.between(0, 3);
    case 1:  // about whole pages
      return random.between(1, 6) * shape.page_bytes + random.between(0, 2) - 1;
    case 2:
      return random.between(0, 2 * shape.page_bytes);
    default:
      return random.between(0, most_pages * shape.page_bytes);
  }
}

MessageShape draw_message(Random& random, const Shape& shape, uint32_t staged_percent, uint32_t most_pages) {
  MessageShape message{};
  message.length_bytes = draw_length_bytes(random, shape, most_pages);
  message.room_bytes = message.length_bytes + (random.happens(50) ? 0 : random.between(0, 300));
  // Mostly both ends agree on which side unpacks; if they do not, the bytes must still be right.
  message.may_stage = shape.stages && random.happens(staged_percent);
  message.has_slot = random.happens(80);
  message.is_unpacked = message.has_slot && (random.happens(10) || message.may_stage);
  message.is_gpu = random.happens(30);
  return message;
}

// What both kinds of connection have.
void draw_devices(Random& random, Shape& shape) {
  if (random.happens(30)) shape.send_depth = random.between(1, 16);
  shape.local_depth = random.between(1, 8) * shape.rails;
  shape.has_gpu_pages = random.happens(30);
  shape.is_observed = random.happens(50);
  shape.busy_percent = random.happens(50) ? 0 : 20;
  shape.splits_over_all = random.happens(50);
  if (random.happens(60)) return;
  shape.adaptive = random.between(1, (1U << shape.rails) - 1);
  shape.adaptive_above_bytes = random.between(0, 2) * kWrittenUnitBytes;
  shape.send_depth = std::max(shape.send_depth, 2U);
}

// By random numbers of their own: the other seeds stay what they were.
bool draw_out_of_order(uint64_t seed) {
  return Random(~seed).happens(25);
}
bool draw_long_out_of_order(uint64_t seed) {
  return draw_out_of_order(seed) && Random(~seed ^ 1).happens(20);
}

// Where nothing is staged, most receivers have no queue for a kernel. Also by random numbers of its own.
void draw_queue(uint64_t seed, Shape& shape) {
  shape.has_queue = shape.stages || Random(~seed ^ 2).happens(25);
  if (shape.has_queue) return;
  for (MessageShape& message : shape.messages) message.has_slot = message.is_unpacked = false;
}

// Long enough that their immediate goes apart.
void lengthen_some(Random& random, Shape& shape) {
  if (shape.adaptive == 0) return;
  for (MessageShape& message : shape.messages) {
    if (message.may_stage || !random.happens(25)) continue;
    const uint32_t more = random.between(0, 5) * kWrittenUnitBytes / 2;
    message.length_bytes += more;
    message.room_bytes += more;
  }
}

// Receives of up to kMaxGroup buffers, of several tags. A kernel unpacks none of them.
void draw_groups(Random& random, Shape& shape) {
  if (shape.stages || random.happens(20)) return;
  shape.tags = random.between(1, kMaxGroup);
  const auto count = static_cast<uint32_t>(shape.messages.size());
  for (MessageShape& message : shape.messages)
    message.tag = static_cast<uint8_t>(random.between(0, shape.tags - 1));
  for (uint32_t first = 0; first < count;) {
    const uint32_t size = random.happens(30) ? 1 : std::min(random.between(1, kMaxGroup), count - first);
    for (uint32_t i = first; i < first + size && size > 1; ++i) {
      shape.messages[i].has_slot = shape.messages[i].is_unpacked = false;
      shape.messages[i].count = 0;
    }
    shape.messages[first].count = static_cast<uint8_t>(size);
    first += size;
  }
}

// Durations are far below the limit, so that what passes by itself must not end in an error.
Fault draw_fault(Random& random) {
  Fault fault;
  do {
    fault.kind = static_cast<FaultKind>(random.between(0, kFaultKinds - 1));
    fault.state = static_cast<State>(random.between(0, kStates - 1));
  } while (!is_possible(fault.kind, fault.state));
  fault.delay_steps = random.happens(30) ? 0 : static_cast<uint16_t>(random.between(0, 60));
  fault.duration_steps = static_cast<uint16_t>(1U << random.between(2, 9));
  return fault;
}

// What happens during a recovery needs one: something that can be recovered from comes first.
void draw_faults(Random& random, Shape& shape) {
  static constexpr FaultKind kFirst[] = {FaultKind::kSenderEnd, FaultKind::kReceiverEnd,
                                         FaultKind::kBothEnds,  FaultKind::kSilence,
                                         FaultKind::kRailDown,  FaultKind::kEveryQueuePair};
  const auto add = [&](FaultKind kind, State state) {
    Fault fault = draw_fault(random);
    fault.kind = kind;
    fault.state = state;
    shape.faults[shape.fault_count++] = fault;
  };
  const uint32_t directed = random.between(1, 2);
  for (uint32_t i = 0; i < directed; ++i) {
    const Fault fault = draw_fault(random);
    if (fault.state > State::kCreditsUnderWay || random.happens(30)) {
      add(kFirst[random.between(0, 5)],
          static_cast<State>(random.between(0, static_cast<uint32_t>(State::kCreditsUnderWay))));
    }
    shape.faults[shape.fault_count++] = fault;
  }
  if (!random.happens(20)) return;
  // The same again as soon as it lives again.
  const FaultKind again = kFirst[random.between(0, 3)];
  while (shape.fault_count < Shape::kMaxFaults) add(again, State::kRevived);
}

}  // namespace

bool Shape::is_window_wide() const {
  uint64_t pages = 0;
  for (const MessageShape& message : messages)
    pages += message.may_stage ? message.length_bytes / page_bytes + 1 : 0;
  return 2 * pages <= window;
}

Shape draw_shape(uint64_t seed) {
  Random random(seed);
  Shape shape;
  shape.rails = random.between(1, 4);
  shape.queue_pairs = std::min(kMaxQueuePairs, shape.rails * random.between(1, 3));
  shape.page_bytes = 32U << random.between(0, 3);
  shape.window = random.between(1, 24);
  shape.stages = random.happens(75);
  shape.threshold_bytes = random.happens(15) ? 0 : random.between(0, 40) * shape.page_bytes;
  shape.min_stripe_bytes = 128U << random.between(0, 4);
  for (auto& speed : shape.speed_mbps) speed = 100 * random.between(1, 10);
  shape.first_sequence = draw_first_sequence(random);
  shape.posts_ahead = random.happens(30) ? kMessageRing : random.between(1, 8);
  shape.network_percent = random.between(10, 90);
  shape.freeze_percent = random.happens(50) ? 0 : random.between(1, 20);
  shape.freeze_steps = 1U << random.between(2, 9);
  shape.retransmit_percent = random.happens(50) ? 0 : random.between(1, 40);
  draw_devices(random, shape);
  const uint32_t staged_percent = random.between(0, 4) * 25, count = random.between(1, 150);
  for (uint32_t i = 0; i < count; ++i)
    shape.messages.push_back(draw_message(random, shape, staged_percent, 40));
  lengthen_some(random, shape);
  draw_groups(random, shape);
  shape.out_of_order = draw_out_of_order(seed);
  draw_queue(seed, shape);
  return shape;
}

Shape draw_failing_shape(uint64_t seed) {
  Random random(seed);
  Shape shape;
  shape.queue_pairs = random.between(1, 4);
  shape.rails = random.between(1, shape.queue_pairs);
  shape.page_bytes = 32U << random.between(0, 2);
  shape.stages = random.happens(65);
  shape.window = 1U << random.between(0, 8);
  shape.threshold_bytes = random.between(0, 10) * shape.page_bytes;
  shape.min_stripe_bytes = 128U << random.between(0, 2);
  for (auto& speed : shape.speed_mbps) speed = 100 * random.between(1, 10);
  shape.first_sequence = draw_first_sequence(random);
  shape.network_percent = random.between(20, 80);
  shape.freeze_percent = random.happens(70) ? 0 : random.between(1, 10);
  shape.freeze_steps = 1U << random.between(2, 7);
  shape.retransmit_percent = random.happens(70) ? 0 : random.between(1, 30);
  shape.is_in_order = random.happens(50);
  shape.leaves_early = random.happens(15);
  draw_devices(random, shape);
  // Now and then far enough that every slot of the ring is used again.
  const bool is_long = random.happens(4) || draw_long_out_of_order(seed);
  shape.posts_ahead = is_long ? kMessageRing : random.between(1, 8);
  const uint32_t staged_percent = random.between(0, 4) * 25;
  const uint32_t count = is_long ? random.between(kMessageRing + 1, 3 * kMessageRing) : random.between(1, 12);
  for (uint32_t i = 0; i < count; ++i)
    shape.messages.push_back(draw_message(random, shape, staged_percent, is_long ? 2 : 10));
  lengthen_some(random, shape);
  draw_groups(random, shape);
  draw_faults(random, shape);
  shape.out_of_order = draw_out_of_order(seed);
  draw_queue(seed, shape);
  return shape;
}

}  // namespace verbena::protocol::simulation
