#include "protocol/simulation/network.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

namespace verbena::protocol::simulation {

namespace {

// What can happen to a lane: one bit each.
enum Event : uint32_t {
  kLaunch,  // a packet leaves
  kPlace,
  kReport,
  kAcknowledge,
  kDrain,          // of an end that has failed
  kFlush,          // the next of the sender's failed requests is reported
  kExceedRetries,  // the sender's end gives up
  kLaunchControl,
  kPlaceControl,
  kAcknowledgeControl,
  kFlushControl,
  kExceedControlRetries,
};

constexpr uint32_t kExceedPercent = 4;  // retries take long
// A control write that is lost is placed after the next ones, where the queue pair is out of order.
constexpr uint32_t kLingerPercent = 10, kMaxLingerSteps = 4096;

}  // namespace

Network::Network(const Shape& shape, Random& random)
    : shape_(shape),
      random_(random),
      down_until_ns_(shape.rails),
      queues_(shape.rails),
      pages_(size_t{shape.count_pages()} * shape.page_bytes) {
  control_.credits.consumed = shape.first_sequence;
  for (uint32_t q = 0; q < shape.queue_pairs; ++q) {
    Lane& lane = lanes_[make_lane(q)];
    lane.sender.is_ready = lane.receiver.is_ready = true;
  }
}

uint32_t Network::make_lane(uint32_t queue_pair) {
  Lane& lane = lanes_.emplace_back();
  placed_.emplace_back();
  lane.queue_pair = queue_pair;
  lane.rail = queue_pair % shape_.rails;
  return count_lanes() - 1;
}

// What has left may still arrive, from the first on up to where the rest got lost.
void Network::fail_sender(uint32_t id) {
  Lane& lane = lanes_[id];
  if (lane.sender.has_failed) return;
  lane.sender.has_failed = true;
  lane.packets.note_failed();
  lane.packets.flying = random_.between(lane.packets.placed, lane.packets.flying);
  lane.draining = std::min(lane.draining, lane.packets.flying - lane.packets.placed);
}

void Network::fail_receiver(uint32_t id) {
  Lane& lane = lanes_[id];
  if (lane.receiver.has_failed) return;
  lane.receiver.has_failed = true;
  lane.answered = lane.packets.placed;
  lane.controls.note_failed();
  lane.controls.flying = random_.between(lane.controls.placed, lane.controls.flying);
  lane.draining = random_.between(0, std::min(2U, lane.packets.flying - lane.packets.placed));
}

std::optional<Sent> Network::poll_sent() {
  if (sent_.empty()) return std::nullopt;
  const Sent sent = sent_.front();
  sent_.pop_front();
  if (!sent.has_failed) --lanes_[sent.lane].unseen_sent;
  return sent;
}

std::optional<Received> Network::poll_received() {
  if (received_.empty()) return std::nullopt;
  const Received received = received_.front();
  received_.pop_front();
  if (!received.has_failed && !received.is_control) --lanes_[received.lane].unseen_received;
  return received;
}

void Network::write_control(uint32_t id, const void* line, size_t offset_bytes, bool is_signaled) {
  ControlWrite write{
      .line = {}, .offset_bytes = static_cast<uint32_t>(offset_bytes), .is_signaled = is_signaled};
  std::memcpy(write.line, line, sizeof(write.line));
  auto& controls = lanes_[id].controls;
  if (shape_.out_of_order) look_for_overtaking(controls, write);
  controls.requests.push_back(write);
}

// The older one might come last, and the sender wait for ever for what only the newer one tells. A grant that
// is written again tells the same.
void Network::look_for_overtaking(const Stream<ControlWrite>& controls, const ControlWrite& write) {
  for (uint32_t i = controls.acknowledged; i < controls.size(); ++i) {
    const ControlWrite& earlier = controls.requests[i];
    if (earlier.offset_bytes != write.offset_bytes) continue;
    if (!write.is_grant()) violation_ = "a credit line may overtake the one before it";
    if (write.is_grant() && earlier.stamp() != write.stamp())
      violation_ = "a grant may overtake an older one of the same entry";
  }
}

uint32_t Network::find_events(const Lane& lane) const {
  if (now_ns_ < lane.frozen_until_ns) return 0;
  const bool passes = now_ns_ >= lane.silent_until_ns && is_up(lane.rail);
  const bool sends = lane.sender.is_alive(), receives = lane.receiver.is_alive();
  const auto& packets = lane.packets;
  const auto& controls = lane.controls;
  uint32_t events = 0;
  const auto may = [&](Event event, bool can) { events |= uint32_t{can} << event; };
  may(kLaunch, sends && packets.flying < packets.size());
  may(kPlace, receives && passes && packets.placed < packets.flying);
  may(kReport, lane.reported < packets.placed);
  const uint32_t answered = lane.receiver.has_failed ? lane.answered : packets.placed;
  may(kAcknowledge, sends && passes && packets.acknowledged < answered);
  may(kDrain, lane.receiver.has_failed && lane.draining != 0);
  may(kFlush, lane.sender.has_failed && packets.flushed < packets.size());
  may(kExceedRetries, sends && !(receives && passes) && packets.acknowledged < packets.flying);
  may(kLaunchControl, receives && controls.flying < controls.size());
  may(kPlaceControl, sends && passes && controls.placed < controls.flying);
  may(kAcknowledgeControl, receives && passes && controls.acknowledged < controls.placed);
  may(kFlushControl, lane.receiver.has_failed && controls.flushed < controls.size());
  may(kExceedControlRetries, receives && !(sends && passes) && controls.acknowledged < controls.flying);
  return events;
}

bool Network::advance() {
  const uint32_t count = count_lanes(), first = random_.between(0, count - 1);
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t id = (first + i) % count;
    uint32_t events = find_events(lanes_[id]);
    if (events == 0) continue;
    if (shape_.freeze_percent != 0 && random_.happens(shape_.freeze_percent)) {
      lanes_[id].frozen_until_ns = now_ns_ + random_.between(1, shape_.freeze_steps) * kStepNs;
      return true;
    }
    for (uint32_t skip = random_.between(0, static_cast<uint32_t>(std::popcount(events)) - 1); skip != 0;
         --skip)
      events &= events - 1;
    happen(id, static_cast<uint32_t>(std::countr_zero(events)));
    return true;
  }
  return false;
}

void Network::happen(uint32_t id, uint32_t event) {
  Lane& lane = lanes_[id];
  switch (event) {
    case kLaunch:
      lane.packets.flying = random_.between(lane.packets.flying + 1, lane.packets.size());
      return;
    case kPlace:
      return place_packet(id);
    case kReport:
      return report(id);
    case kAcknowledge:
      return acknowledge(id);
    case kDrain:
      return drain_packet(id);
    case kFlush:
      return flush(id);
    case kExceedRetries:
      if (random_.happens(kExceedPercent)) fail_sender(id);
      return;
    case kLaunchControl:
      lane.controls.flying = lane.controls.size();
      return;
    case kPlaceControl:
      return place_control(lane);
    case kAcknowledgeControl:
      return acknowledge_control(id);
    case kFlushControl:
      return flush_control(id);
    default:
      if (random_.happens(kExceedPercent)) fail_receiver(id);
      return;
  }
}

// The first packets of a write came through, the rest is sent again later, from the start.
void Network::place_early(const Packet& packet) {
  if (packet.target == nullptr || packet.length_bytes == 0) return;
  std::memcpy(packet.target, packet.source, random_.between(1, packet.length_bytes));
}

uint32_t Network::take_page(const Lane& lane) {
  auto& queue = queues_[lane.rail];
  if (queue.empty()) {
    violation_ = "a packet met an empty receive queue";
    return kNoPage;
  }
  const uint32_t page = queue.front();
  queue.pop_front();
  return page;
}

// A part of them now, the rest with the next immediate.
void Network::place_bytes(uint32_t id, const Packet& packet) {
  Lane& lane = lanes_[id];
  place_early(packet);
  lane.late.push_back(lane.packets.placed - 1);
  placed_[id].push_back({0, 0, kNoPage, true, false});
}
void Network::place_late(Lane& lane) {
  for (const uint32_t index : lane.late) {
    const Packet& packet = lane.packets.requests[index];
    std::memcpy(packet.target, packet.source, packet.length_bytes);
  }
  lane.late.clear();
}

void Network::place_packet(uint32_t id) {
  Lane& lane = lanes_[id];
  const Packet& packet = lane.packets.requests[lane.packets.placed];
  if (random_.happens(shape_.retransmit_percent)) return place_early(packet);
  ++lane.packets.placed;
  if (packet.is_trial) {
    placed_[id].push_back({0, 0, kNoPage, true, false});
    return;
  }
  if (!packet.has_imm) return place_bytes(id, packet);
  place_late(lane);
  const uint32_t index = take_page(lane);
  if (index == kNoPage) return;
  uint8_t* target = packet.target == nullptr ? page(index) : packet.target;
  if (packet.length_bytes != 0) std::memcpy(target, packet.source, packet.length_bytes);
  placed_[id].push_back({packet.imm, packet.length_bytes, index, packet.target != nullptr, false});
}

// The end has failed in the middle of a packet: its bytes come all the same, whole or in part, and so does
// the receive that it took.
void Network::drain_packet(uint32_t id) {
  Lane& lane = lanes_[id];
  --lane.draining;
  const uint32_t placed = lane.packets.placed;
  place_packet(id);
  if (lane.packets.placed != placed && random_.happens(50)) placed_[id].back().has_failed = true;
}

void Network::report(uint32_t id) {
  Lane& lane = lanes_[id];
  ++lane.reported;
  const Placed placed = placed_[id].front();
  placed_[id].pop_front();
  if (placed.page == kNoPage) return;
  const bool has_failed = placed.has_failed || (lane.loses_reports && lane.receiver.has_failed);
  if (!has_failed) ++lane.unseen_received;
  received_.push_back({id, lane.queue_pair, placed.imm, placed.length_bytes, placed.page, placed.is_write,
                       false, has_failed});
}

void Network::acknowledge(uint32_t id) {
  Lane& lane = lanes_[id];
  const uint32_t index = lane.packets.acknowledged++;
  const Packet& packet = lane.packets.requests[index];
  if (!packet.is_signaled) return;
  ++lane.unseen_sent;
  sent_.push_back({id, index, packet.cookie, false, false});
}

// Failed requests are reported whether they are signaled or not.
void Network::flush(uint32_t id) {
  Lane& lane = lanes_[id];
  const uint32_t index = lane.packets.flushed++;
  sent_.push_back(
      {id, index, lane.packets.requests[index].cookie, true, std::exchange(lane.sender.refuses, false)});
}

void Network::flush_control(uint32_t id) {
  Lane& lane = lanes_[id];
  const uint32_t index = lane.controls.flushed++;
  received_.push_back({id, lane.queue_pair, 0, 0, kNoPage, false, true, true,
                       std::exchange(lane.receiver.refuses, false), index});
}

// Where the queue pair is out of order, any that is neither placed nor lost for a while. Null: there is none.
ControlWrite* Network::choose_control(Lane& lane) {
  auto& controls = lane.controls;
  if (!shape_.out_of_order) return &controls.requests[controls.placed];
  const uint32_t flying = controls.flying - controls.placed, first = random_.between(0, flying - 1);
  for (uint32_t i = 0; i < flying; ++i) {
    ControlWrite& write = controls.requests[controls.placed + (first + i) % flying];
    if (write.is_placed || now_ns_ < write.lost_until_ns) continue;
    if (write.lost_until_ns != 0 || !random_.happens(kLingerPercent)) return &write;
    write.lost_until_ns = now_ns_ + random_.between(1, kMaxLingerSteps) * kStepNs;
  }
  return nullptr;
}

void Network::place_control(Lane& lane) {
  auto& controls = lane.controls;
  ControlWrite* write = choose_control(lane);
  if (write == nullptr) return;
  std::memcpy(reinterpret_cast<uint8_t*>(&control_) + write->offset_bytes, write->line, sizeof(write->line));
  write->is_placed = !random_.happens(shape_.retransmit_percent);  // else it is placed once more
  while (controls.placed < controls.flying && controls.requests[controls.placed].is_placed) ++controls.placed;
}

void Network::acknowledge_control(uint32_t id) {
  Lane& lane = lanes_[id];
  const uint32_t index = lane.controls.acknowledged++;
  if (!lane.controls.requests[index].is_signaled) return;
  received_.push_back({id, lane.queue_pair, 0, 0, kNoPage, false, true, false, false, index,
                       lane.controls.requests[index].offset_bytes});
}

bool Network::is_quiet() {
  return sent_.empty() && received_.empty() &&
         std::all_of(lanes_.begin(), lanes_.end(), [this](const Lane& lane) {
           return now_ns_ >= lane.frozen_until_ns && find_events(lane) == 0;
         });
}

void Network::report_all() {
  for (uint32_t id = 0; id < count_lanes(); ++id)
    while (lanes_[id].reported < lanes_[id].packets.placed) report(id);
}

size_t Network::count_posted_pages() const {
  size_t count = 0;
  for (const auto& queue : queues_) count += queue.size();
  return count;
}

}  // namespace verbena::protocol::simulation
