#include "protocol/simulation/sim_port.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace verbena::protocol::simulation {

namespace {

SendOptions choose_send_options(const Shape& shape) {
  SendOptions options;
  options.queue_pairs = shape.queue_pairs;
  for (uint32_t q = 0; q < shape.queue_pairs; ++q) {
    options.rail_of[q] = options.peer_rail_of[q] = static_cast<uint8_t>(q % shape.rails);
    options.window[q] = shape.window;
  }
  options.page_bytes = shape.page_bytes;
  options.staging_threshold_bytes = shape.threshold_bytes;
  options.min_stripe_bytes = shape.min_stripe_bytes;
  options.staging = shape.stages;
  options.speed_mbps = shape.speed_mbps;
  options.primary = choose_primary(shape.first_sequence, shape.queue_pairs);
  for (uint32_t q = 0; q < shape.queue_pairs; ++q)
    options.is_adaptive[q] = !shape.out_of_order && (shape.adaptive >> options.rail_of[q] & 1) != 0;
  options.adaptive_above_bytes = shape.adaptive_above_bytes;
  options.splits_over_all = shape.splits_over_all;
  options.first_sequence = shape.first_sequence;
  options.times = kRecoveryTimes;
  return options;
}

ReceiveOptions choose_receive_options(const Shape& shape) {
  ReceiveOptions options;
  options.queue_pairs = shape.queue_pairs;
  for (uint32_t q = 0; q < shape.queue_pairs; ++q) {
    options.window[q] = shape.window;
    options.rail_of[q] = static_cast<uint8_t>(q % shape.rails);
  }
  options.primary = choose_primary(shape.first_sequence, shape.queue_pairs);
  options.page_bytes = shape.page_bytes;
  options.is_direct_only = !shape.stages;
  options.waits_for_consumed = true;
  options.pushes_pages = shape.has_gpu_pages;
  options.out_of_order = shape.out_of_order;
  options.first_sequence = shape.first_sequence;
  options.times = kRecoveryTimes;
  return options;
}

// The simulated peer and devices never do what these stand for.
bool is_violation(Failure fault) {
  switch (fault) {
    case Failure::kRequest:
    case Failure::kOverdue:
    case Failure::kPeerGone:
    case Failure::kPeerClosed:
    case Failure::kBroken:
    case Failure::kDeviceLoss:
      return false;
    default:
      return true;
  }
}

}  // namespace

// --- Both ends.

SimEnd::SimEnd(const Shape& shape, Random& random, Network& network, ControlChannel& from_peer,
               ControlChannel& to_peer)
    : shape_(shape), random_(random), network_(network), from_peer_(from_peer), to_peer_(to_peer) {
  for (uint32_t q = 0; q < shape.queue_pairs; ++q) lanes_[q] = q;
}

bool SimEnd::take_news() {
  network_.interleave();
  const bool has_news = is_wanted();
  is_wanted_ = false;
  from_peer_.note_attended();
  return has_news;
}

bool SimEnd::is_grace_over() {
  if (closed_since_ns_ == 0) closed_since_ns_ = now_ns();
  return now_ns() - closed_since_ns_ >= kGraceNs;
}

bool SimEnd::fail(Failure fault, uint32_t number, uint32_t queue_pair) {
  if (has_failed()) return false;
  error_ = "fault " + std::to_string(static_cast<uint32_t>(fault)) + ", number " + std::to_string(number) +
           ", queue pair " + std::to_string(queue_pair);
  if (is_violation(fault)) violation_ = error_;
  return false;
}

const RecoveryRecord* SimEnd::receive_record(const ArrivedRecord** arrived) {
  message_ = from_peer_.receive();
  *arrived = message_ ? message_->arrived.get() : nullptr;
  return message_ ? &message_->record : nullptr;
}

// --- The sender's port.

SimSender::SimSender(const Shape& shape, Random& random, Network& network, ControlChannel& from_peer,
                     ControlChannel& to_peer)
    : Core(choose_send_options(shape)), SimEnd(shape, random, network, from_peer, to_peer) {
  depth_ = shape.send_depth;
  if (shape.is_observed) observe();
}

bool SimSender::poll_completions() {
  begin_look();
  while (const auto sent = network_.poll_sent()) {
    const uint32_t q = network_.lane(sent->lane).queue_pair;
    if (lanes_[q] != sent->lane) continue;  // of one that was retired
    if (sent->has_failed) {
      fail_queue_pair(q, sent->is_at_fault, cookie_sequence(sent->cookie));
      continue;
    }
    slots_[q].retired = sent->index + 1;
    if (sent->cookie == kTrialCookie) {
      on_trial_passed(q);
    } else if (ring()[cookie_sequence(sent->cookie) % kMessageRing].outstanding[q] == 0) {
      violation_ = "a completion of nothing";
    } else {
      on_sent(q, sent->cookie);
    }
  }
  end_look();
  return !has_failed();
}

Packet SimSender::make_work(uint32_t, const SimTypes::Memory*, const SendWork& work) {
  return {.imm = work.imm,
          .cookie = work.cookie,
          .length_bytes = work.length_bytes,
          .source = work.data,
          .target = work.is_write ? reinterpret_cast<uint8_t*>(work.remote) : nullptr,
          .has_imm = work.has_imm,
          .is_signaled = work.is_signaled};
}

bool SimSender::post_work(uint32_t q, const Packet& packet) {
  if (free_slots(q) == 0) violation_ = "a request where the send queue is full";
  ++slots_[q].posted;
  Packet posted = packet;
  posted.is_replay =
      std::exchange(replays_seen_, statistics().replayed_chunks) != statistics().replayed_chunks;
  network_.send(lanes_[q], posted);
  return true;
}

bool SimSender::post_work(uint32_t q, std::span<const Packet> packets) {
  for (const Packet& packet : packets) post_work(q, packet);
  return true;
}

bool SimSender::post_trial(uint32_t q, uint64_t cookie) {
  return post_work(q, Packet{.cookie = cookie, .is_signaled = true, .is_trial = true});
}

bool SimSender::renew_pair(uint32_t q, RecoveryRecord& record) {
  if (std::exchange(fails_offer, false)) return false;
  lanes_[q] = network_.make_lane(q);
  record.pair.number = lanes_[q];
  return true;
}

bool SimSender::connect_pair(uint32_t q, const RecoveryRecord&) {
  Lane& lane = network_.lane(lanes_[q]);
  if (std::exchange(fails_connect, false) || lane.sender.has_failed) return false;
  return lane.sender.is_ready = true;
}

Replay* SimSender::make_replay() {
  replays_ = std::make_unique<Replay>();
  return replays_.get();
}

void SimSender::serve_if_due() {
  if (!is_wanted() && now_ns() < serve_at_ns_) return;
  serve_at_ns_ = serve();
}

void SimSender::die() {
  for (uint32_t id = 0; id < network_.count_lanes(); ++id) network_.fail_sender(id);
  to_peer_.close(false);
}

// --- The receiver's port.

SimReceiver::SimReceiver(const Shape& shape, Random& random, Network& network, ControlChannel& from_peer,
                         ControlChannel& to_peer, NetUnpackMeta* meta)
    : Core(choose_receive_options(shape), shape.has_queue ? std::optional(UnpackQueue(meta)) : std::nullopt),
      SimEnd(shape, random, network, from_peer, to_peer),
      pages_(shape.count_pages()),
      pushed_(shape.count_pages()) {
  depth_ = kControlDepth;
  if (shape.is_observed) observe();
  for (uint32_t q = 0; q < shape.queue_pairs; ++q)
    for (uint32_t i = 0; i < shape.window; ++i) network_.post_page(q % shape.rails, q * shape.window + i);
}

bool SimReceiver::poll_completions() {
  while (const auto received = network_.poll_received()) {
    const uint32_t q = received->queue_pair;
    if (lanes_[q] != received->lane) {
      take_back(*received);  // of one that was retired
    } else if (received->has_failed) {
      take_back(*received);
      fail_queue_pair(q, received->is_at_fault, consumed());
    } else if (received->is_control) {
      slots_[q].retired = received->index + 1;
      on_control_written(q, received->offset_bytes);
    } else {
      if (is_here(*received)) violation_ = "a chunk that is here came again";
      const auto tag = decode_tag(received->imm);
      note_written(q % shape_.rails, tag->expand(consumed() + kMessageRing / 2));
      on_arrived(q, {received->imm, received->length_bytes, received->page, received->is_write});
    }
  }
  work_locally();
  return !has_failed();
}

// Of a message that is open, or not posted yet.
bool SimReceiver::is_here(const Received& received) const {
  const auto tag = decode_tag(received.imm);
  const uint32_t sequence = tag->expand(consumed() + kMessageRing / 2);
  const Message& message = ring()[sequence % kMessageRing];
  const bool is_its = !message.is_posted || message.sequence == sequence;
  return is_its && (message.arrivals.bitmap()[tag->index / 64] >> (tag->index % 64) & 1) != 0;
}

void SimReceiver::take_back(const Received& received) {
  if (received.page != kNoPage) network_.post_page(received.queue_pair % shape_.rails, received.page);
}

void SimReceiver::write_control(uint32_t q, const void* line, uint64_t offset_bytes, bool is_signaled) {
  if (free_slots(q) == 0) violation_ = "a line where the send queue is full";
  ++slots_[q].posted;
  network_.write_control(lanes_[q], line, offset_bytes, is_signaled);
}

bool SimReceiver::repost(uint32_t q, std::span<const uint32_t> pages) {
  for (const uint32_t page : pages) {
    pushed_[page] = 0;
    network_.post_page(q % shape_.rails, page);
  }
  return true;
}

CopyResult SimReceiver::copy_page(uint32_t page, uint8_t* target, const SimTypes::Memory* memory,
                                  uint32_t bytes, uint32_t* outstanding) {
  if (!memory->is_gpu) {
    std::memcpy(target, network_.page(page), bytes);
    return CopyResult::kTaken;
  }
  if (!has_room_to_flush(0)) return CopyResult::kLater;
  ++*outstanding;
  local_.push_back({0, page, bytes, target, outstanding});
  return CopyResult::kTaken;
}

void SimReceiver::flush_page(uint32_t rail, uint32_t page, uint32_t* outstanding) {
  ++*outstanding;
  local_.push_back({rail, page, 0, nullptr, outstanding, writes_[rail]});
}

void SimReceiver::flush_data(uint32_t rail, const void*, const SimTypes::Memory*, uint32_t* outstanding) {
  ++*outstanding;
  local_.push_back({rail, kNoPage, 0, nullptr, outstanding, writes_[rail]});
}

// The device does what it was asked in order, some of it now.
void SimReceiver::work_locally() {
  while (!local_.empty() && random_.happens(50)) {
    const LocalWork work = local_.front();
    local_.pop_front();
    if (work.target != nullptr) {
      std::memcpy(work.target, network_.page(work.page), work.length_bytes);
      for (const Message& message : ring()) {
        const bool is_its = message.is_posted && work.target >= message.data &&
                            work.target < message.data + message.room_bytes;
        if (is_its) note_written(work.rail, message.sequence);
      }
    } else {
      if (work.page != kNoPage) pushed_[work.page] |= 1U << work.rail;
      pushed_writes_[work.rail] = std::max(pushed_writes_[work.rail], work.writes);
    }
    --*work.outstanding;
    ++local_done_;
  }
}

bool SimReceiver::is_drained(uint32_t q) {
  if (!network_.lane(lanes_[q]).is_drained()) return false;
  network_.interleave();
  return true;
}

bool SimReceiver::renew_pair(uint32_t, RecoveryRecord&) {
  return !std::exchange(refuses, false);
}

// The sender's lane is both ends' queue pair.
bool SimReceiver::connect_pair(uint32_t q, const RecoveryRecord& offer) {
  lanes_[q] = offer.pair.number;
  network_.lane(lanes_[q]).receiver.is_ready = true;
  return true;
}

void SimReceiver::serve_if_due() {
  if (!is_wanted() && now_ns() < serve_at_ns_) return;
  serve_at_ns_ = serve();
}

void SimReceiver::die() {
  for (uint32_t id = 0; id < network_.count_lanes(); ++id) network_.fail_receiver(id);
  to_peer_.close(false);
}

uint32_t SimReceiver::count_spare() const {
  uint32_t count = 0;
  for (uint32_t q = 0; q < shape_.queue_pairs; ++q) count += spare(q);
  return count;
}

bool SimReceiver::is_pushed(uint32_t sequence) const {
  const Message& message = ring()[sequence % kMessageRing];
  if (!shape_.has_gpu_pages) return true;
  uint32_t rails = 0;
  for (uint32_t page = message.first_page; page != kNoPage; page = pages_[page].next)
    rails |= 1U << pages_[page].queue_pair % shape_.rails;
  return message.last_page == kNoPage || pushed_[message.last_page] == rails;
}

void SimReceiver::note_written(uint32_t rail, uint32_t sequence) {
  last_write_[sequence % kMessageRing][rail] = ++writes_[rail];
}

bool SimReceiver::is_visible(uint32_t sequence) const {
  const auto& last = last_write_[sequence % kMessageRing];
  for (uint32_t rail = 0; rail < shape_.rails; ++rail)
    if (last[rail] > pushed_writes_[rail]) return false;
  return true;
}

}  // namespace verbena::protocol::simulation
