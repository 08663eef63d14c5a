#include "protocol/simulation/network.h"

#include <cstring>

namespace verbena::protocol::simulation {

Network::Network(const Shape& shape, Random& random)
    : shape_(shape),
      random_(random),
      packets_(shape.queue_pairs),
      controls_(shape.queue_pairs),
      acknowledged_(shape.queue_pairs),
      frozen_steps_(3 * shape.queue_pairs),
      queues_(shape.rails),
      pages_(size_t{shape.count_pages()} * shape.page_bytes) {
  control_.credits.consumed = shape.first_sequence;
}

std::optional<uint32_t> Network::poll_sent() {
  if (sent_.empty()) return std::nullopt;
  const uint32_t sequence = sent_.front();
  sent_.pop_front();
  return sequence;
}

std::optional<Received> Network::poll_received() {
  if (received_.empty()) return std::nullopt;
  const Received received = received_.front();
  received_.pop_front();
  return received;
}

void Network::write_control(uint32_t queue_pair, const void* line, size_t offset_bytes) {
  ControlWrite write{{}, offset_bytes};
  std::memcpy(write.line, line, sizeof(write.line));
  controls_[queue_pair].push_back(write);
}

void Network::advance() {
  const uint32_t pairs = shape_.queue_pairs;
  const uint32_t channel = random_.between(0, 3 * pairs - 1), q = channel % pairs;
  if (frozen_steps_[channel] != 0) {
    --frozen_steps_[channel];
    return;
  }
  if (random_.happens(shape_.freeze_percent)) {
    frozen_steps_[channel] = random_.between(1, shape_.freeze_steps);
    return;
  }
  switch (channel / pairs) {
    case 0:
      if (random_.happens(shape_.retransmit_percent)) return place_early(q);
      return deliver_packet(q);
    case 1:
      return deliver_control(q);
    default:
      return deliver_acknowledgement(q);
  }
}

// The first packets of a write came through, the rest is sent again later, from the start.
void Network::place_early(uint32_t queue_pair) {
  if (packets_[queue_pair].empty()) return;
  const Packet& packet = packets_[queue_pair].front();
  if (packet.target == nullptr || packet.length_bytes == 0) return;
  std::memcpy(packet.target, packet.source, random_.between(1, packet.length_bytes));
}

void Network::deliver_packet(uint32_t queue_pair) {
  if (packets_[queue_pair].empty()) return;
  const Packet packet = packets_[queue_pair].front();
  auto& queue = queues_[queue_pair % shape_.rails];
  if (queue.empty()) {
    violation_ = "a packet met an empty receive queue";
    return;
  }
  packets_[queue_pair].pop_front();
  const uint32_t index = queue.front();
  queue.pop_front();
  uint8_t* target = packet.target;
  if (target == nullptr) target = page(index);
  if (packet.length_bytes != 0) std::memcpy(target, packet.source, packet.length_bytes);
  received_.push_back({queue_pair, packet.imm, packet.length_bytes, index, packet.target != nullptr});
  acknowledged_[queue_pair].push_back(packet.sequence);
}

void Network::deliver_control(uint32_t queue_pair) {
  auto& writes = controls_[queue_pair];
  if (writes.empty()) return;
  std::memcpy(reinterpret_cast<uint8_t*>(&control_) + writes.front().offset_bytes, writes.front().line,
              sizeof(writes.front().line));
  if (!random_.happens(shape_.retransmit_percent)) writes.pop_front();  // else it is placed once more
}

void Network::deliver_acknowledgement(uint32_t queue_pair) {
  auto& numbers = acknowledged_[queue_pair];
  if (numbers.empty()) return;
  sent_.push_back(numbers.front());
  numbers.pop_front();
}

bool Network::is_quiet() const {
  for (uint32_t q = 0; q < shape_.queue_pairs; ++q) {
    if (!packets_[q].empty() || !controls_[q].empty() || !acknowledged_[q].empty()) return false;
  }
  return true;
}

size_t Network::count_posted_pages() const {
  size_t count = 0;
  for (const auto& queue : queues_) count += queue.size();
  return count;
}

}  // namespace verbena::protocol::simulation
