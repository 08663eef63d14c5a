#include "protocol/lane_simulation/rank.h"

#include <utility>

namespace verbena::protocol::lane_simulation {

namespace {

LaneRole role_of(uint32_t rank, uint32_t peer) {
  return rank == peer ? LaneRole::kOwn : rank < peer ? LaneRole::kOffers : LaneRole::kAnswers;
}

}  // namespace

SimLane::Memory::Memory(const Shape& shape)
    : operations(shape.ring),
      shares(size_t{shape.ring} * shape.rails),
      posted(size_t{shape.ring} * shape.rails) {}

SimLane::SimLane(Rank& rank, uint32_t peer, uint32_t lane, std::unique_ptr<Memory> memory)
    : Core({.rails = rank.shape().rails,
            .lane = static_cast<uint8_t>(lane),
            .role = role_of(rank.rank(), peer),
            .send_depth = rank.shape().send_depth,
            .signal_interval = 4,
            .max_request_bytes = rank.shape().max_request_bytes,
            .packet_number_bits = rank.shape().packet_number_bits,
            .min_stripe_bytes = 2 * kPacketBytes,
            .words_wait = rank.shape().overtakes,
            .add_slots = rank.shape().add_slots,
            .times = kRecoveryTimes},
           memory->storage()),
      rank_(rank),
      peer_(peer),
      lane_(lane),
      memory_(std::move(memory)),
      truth_of_(rank.shape().ring),
      slot_of_(rank.shape().add_slots) {}

void SimLane::post_truth(uint32_t truth) {
  const Truth& what = rank_.world().truth(truth);
  Operation operation;
  operation.kind = what.kind;
  operation.length_bytes = what.length_bytes;
  operation.operand = what.operand;
  const bool is_add = what.kind == LaneOperationKind::kAddWord || what.kind == LaneOperationKind::kAskAdd;
  operation.cookie = is_add || truth % 3 == 0 ? truth + 1 : 0;
  truth_of_[Core::post(operation)] = truth;
  issue();
}

// As a device does: whatever is posted last is signaled, so that all is told of.
void SimLane::post(uint32_t q, const Request& request) {
  Request posted = request;
  posted.is_signaled = true;
  const bool is_operation = request.operation != nullptr;
  if (is_operation && request.operation->kind == LaneOperationKind::kAskAdd)
    slot_of_[request.operation->asked_before % slot_of_.size()] = request.slot;
  rank_.world().post(queue_pairs_[q], posted, is_operation ? truth_of_[request.slot] : kNone);
}

void SimLane::serve() {
  World& world = rank_.world();
  if (slot_of_.empty()) return;
  while (world.carry_out_add(peer_, rank_.rank(), lane_, served()))
    on_served(static_cast<uint16_t>(served() + 1));
  issue_answers();
  const auto& answers = world.ring(rank_.rank(), peer_, lane_).answers;
  while (answers[answered() % answers.size()].number == answered()) {
    const uint32_t slot = slot_of_[answered() % slot_of_.size()];
    if (!may_be_answered(slot)) break;
    on_answered(slot);
  }
}

void SimLane::take(const Completion& completion) {
  const QueuePair& pair = rank_.world().queue_pair(completion.queue_pair);
  const uint32_t q = pair.rail;
  if (has_failed() || queue_pairs_[q] != completion.queue_pair || !recovery().is_in_use(q)) return;
  if (completion.has_failed) {
    if (completion.is_at_fault) return fail(LaneFailure::kRequest, q);
    fail_queue_pair(q);
  } else if (!is_under_way(q, completion.position)) {
    rank_.world().violate("a completion of nothing");
  } else {
    on_completed(q, completion.position);
  }
}

void SimLane::tell() {
  while (const Operation* told = find_told()) {
    rank_.world().note_told(truth_of_[told_slot()], told->is_answer_lost);
    take_told();
  }
}

void SimLane::probe() {
  if (!slot_of_.empty()) Core::probe(slot_of_[answered() % slot_of_.size()]);
}

int64_t SimLane::now_ns() const {
  return rank_.world().now_ns();
}

void SimLane::stop_pair(uint32_t q, LaneRecord& record) {
  World& world = rank_.world();
  world.stop(queue_pairs_[q]);
  record.has_count = rank_.shape().says_counts ? 1 : 0;
  if (record.has_count != 0)
    record.packets =
        PacketNumbers(rank_.shape().packet_number_bits).add(0, world.queue_pair(queue_pairs_[q]).packets);
}

void SimLane::retire_pair(uint32_t q) {
  rank_.world().queue_pair(queue_pairs_[q]).is_retired = true;
}

bool SimLane::is_usable(uint32_t q) const {
  return rank_.world().is_up(rank_.rank(), q);
}

bool SimLane::renew_pair(uint32_t q, LaneRecord& record) {
  if (std::exchange(rank_.refuses, false)) return false;
  queue_pairs_[q] = rank_.world().make_queue_pair(rank_.rank(), peer_, lane_, q, record.generation);
  record.pair.number = queue_pairs_[q];
  return true;
}

bool SimLane::connect_pair(uint32_t q, const LaneRecord& record) {
  rank_.world().connect(queue_pairs_[q], record.pair.number);
  return true;
}

void SimLane::send_record(const LaneRecord& record) {
  rank_.world().send_record(rank_.rank(), peer_, record);
}

void SimLane::fail(LaneFailure failure, uint32_t) {
  rank_.fail(peer_, failure);
}

Rank::Rank(const Shape& shape, Random& random, World& world, uint32_t rank)
    : shape_(shape), random_(random), world_(world), rank_(rank), peers_(shape.ranks) {
  for (uint32_t peer = 0; peer < shape.ranks; ++peer) {
    for (uint32_t lane = 0; lane < shape.lanes; ++lane)
      peers_[peer].lanes.push_back(
          std::make_unique<SimLane>(*this, peer, lane, std::make_unique<SimLane::Memory>(shape)));
  }
}

void Rank::fail(uint32_t peer, LaneFailure failure) {
  static constexpr const char* kNames[] = {"request",   "overdue",     "peer gone", "no word rail",
                                           "uncertain", "device loss", "record",    "given up"};
  if (!works(peer)) return;
  peers_[peer].error = kNames[static_cast<size_t>(failure)];
  LaneRecord record;
  record.kind = LaneRecordKind::kGivenUp;
  if (peer != rank_) world_.send_record(rank_, peer, record);
  for (const auto& lane : peers_[peer].lanes) {
    for (uint32_t q = 0; q < shape_.rails; ++q) world_.stop(lane->queue_pair(q));
  }
}

bool Rank::is_whole(uint32_t rail) {
  bool is_whole = true;
  for_lanes([&](uint32_t, SimLane& lane) { is_whole &= lane.recovery().is_live(rail); });
  return is_whole;
}

void Rank::stop_rail(uint32_t rail) {
  for_lanes([&](uint32_t, SimLane& lane) { lane.fail_queue_pair(rail); });
}

void Rank::tell_word_rail(uint32_t rail, uint32_t moves) {
  LaneRecord record;
  record.kind = LaneRecordKind::kWordRail;
  record.rail = static_cast<uint8_t>(rail);
  record.generation = moves;
  for (uint32_t peer = 0; peer < shape_.ranks; ++peer) {
    if (!works(peer)) continue;
    if (peer != rank_) world_.send_record(rank_, peer, record);
  }
  for (const auto& lane : peers_[rank_].lanes) lane->set_main(rail);
}

void Rank::absorb_records(uint32_t peer) {
  auto& records = world_.records(peer, rank_);
  while (!records.empty() && works(peer)) {
    const LaneRecord record = records.front();
    records.pop_front();
    if (!is_sane(record, shape_.lanes, shape_.rails)) {
      fail(peer, LaneFailure::kRecord);
    } else if (record.kind == LaneRecordKind::kGivenUp) {
      fail(peer, LaneFailure::kGivenUp);
    } else if (record.kind == LaneRecordKind::kWordRail) {
      if (record.generation != ++peers_[peer].word_rail_news) fail(peer, LaneFailure::kRecord);
      for (const auto& lane : peers_[peer].lanes) lane->set_main(record.rail);
    } else {
      peers_[peer].lanes[record.lane]->absorb(record);
    }
  }
  if (!world_.is_gone(peer)) return;
  for (const auto& lane : peers_[peer].lanes)
    if (works(peer)) lane->lose_peer();
}

// Of the queue pairs those whose rail is known to be down here, while another is up.
void Rank::give_up_dying() {
  bool is_other_up = false;
  for (uint32_t q = 0; q < shape_.rails; ++q) is_other_up |= world_.is_up(rank_, q);
  for (uint32_t q = 0; q < shape_.rails && is_other_up; ++q)
    if (!world_.is_up(rank_, q)) stop_rail(q);
}

void Rank::post_random() {
  if (posted_ == shape_.operations) return;
  const uint32_t to = random_.between(0, shape_.ranks - 1), on = random_.between(0, shape_.lanes - 1);
  if (!works(to) || !lane(to, on).has_room()) {
    if (!works(to)) ++posted_;  // the application knows better than to ask it for anything
    return;
  }
  ++posted_;
  Truth truth;
  truth.from = rank_;
  truth.to = to;
  truth.lane = on;
  const uint32_t what = random_.between(0, 99);
  truth.kind = what < 45   ? LaneOperationKind::kPut
               : what < 52 ? LaneOperationKind::kGet
               : what < 60 ? LaneOperationKind::kWriteWord
               : what < 95 ? LaneOperationKind::kAddWord
                           : LaneOperationKind::kReadWord;
  if (truth.kind == LaneOperationKind::kAddWord && shape_.add_slots != 0)
    truth.kind = LaneOperationKind::kAskAdd;
  truth.length_bytes = kWordBytes;
  if (truth.kind == LaneOperationKind::kPut || truth.kind == LaneOperationKind::kGet)
    truth.length_bytes = random_.happens(40) ? random_.between(0, 200)
                                             : random_.between(0, shape_.max_put_packets * kPacketBytes);
  truth.word =
      truth.kind == LaneOperationKind::kWriteWord ? kWrittenWord : random_.between(0, kWrittenWord - 1);
  truth.operand = random_.between(1, 1000);
  if (random_.happens(20)) {
    lane(to, on).fence();
    truth.is_fenced = true;
  }
  lane(to, on).post_truth(world_.add_truth(truth));
}

void Rank::step() {
  if (world_.is_dead(rank_) || world_.now_ns() < asleep_until_ns_) return;
  for (uint32_t peer = 0; peer < shape_.ranks; ++peer) absorb_records(peer);
  auto& completions = world_.completions(rank_);
  while (!completions.empty() && !random_.happens(10)) {
    const Completion completion = completions.front();
    completions.pop_front();
    const QueuePair& pair = world_.queue_pair(completion.queue_pair);
    if (works(pair.peer)) lane(pair.peer, pair.lane).take(completion);
  }
  give_up_dying();
  bool is_any_dead = false;
  for_lanes([&](uint32_t, SimLane& lane) { is_any_dead |= !lane.recovery().are_all_live(); });
  if (is_any_dead) {
    word_rail_.reconsider(*this);
    for_lanes([&](uint32_t, SimLane& lane) {
      if (!lane.recovery().are_all_live()) lane.step();
    });
  }
  for_lanes([&](uint32_t, SimLane& lane) {
    lane.issue();
    lane.serve();
    if (random_.happens(2)) lane.probe();
    lane.tell();
  });
  if (random_.happens(50)) post_random();
}

bool Rank::is_done() {
  if (world_.is_dead(rank_)) return true;
  bool is_done = posted_ == shape_.operations;
  for_lanes([&](uint32_t, SimLane& lane) {
    is_done &= lane.open_operations() == 0;
    for (uint32_t q = 0; q < shape_.rails; ++q) is_done &= lane.recovery().is_settled(q);
  });
  return is_done;
}

}  // namespace verbena::protocol::lane_simulation
