#include "protocol/lane_simulation/world.h"

#include <algorithm>

namespace verbena::protocol::lane_simulation {

World::World(const Shape& shape, Random& random)
    : shape_(shape),
      random_(random),
      down_until_ns_(shape.ranks, std::vector<int64_t>(shape.rails)),
      completions_(shape.ranks),
      records_(shape.ranks, std::vector<Channel>(shape.ranks)),
      is_dead_(shape.ranks),
      died_at_ns_(shape.ranks),
      adding_(shape.ranks, std::vector<uint32_t>(shape.rails, kNone)),
      words_(shape.ranks),
      sums_(shape.ranks),
      by_lane_(size_t{shape.ranks} * shape.ranks * shape.lanes),
      rings_(by_lane_.size()) {
  for (Ring& ring : rings_)
    for (auto* slots : {&ring.requests, &ring.answers, &ring.unsent, &ring.applied})
      slots->resize(shape.add_slots);
}

// --- What may happen.

// A fenced request leaves when the answers of all before it are here. Nothing leaves where the way is down.
bool World::can_send(const QueuePair& pair) const {
  if (pair.is_stopped || !pair.is_connected || pair.sent == pair.work.size() || !is_way_up(pair))
    return false;
  return !pair.work[pair.sent].is_fenced || pair.answered == pair.sent;
}
// What has left is carried out even if its sender has stopped since; a device ends what it has begun.
bool World::can_carry_out(const QueuePair& pair) const {
  if (pair.partner == kNone || pair.carried_out == pair.sent) return false;
  if (!is_way_up(pair) && !pair.work[pair.carried_out].has_read) return false;
  const QueuePair& at = queue_pairs_[pair.partner];
  return at.is_connected && !at.is_stopped && at.partner != kNone && !is_dead_[at.rank];
}
bool World::can_answer(const QueuePair& pair) const {
  return !pair.is_stopped && pair.answered != pair.carried_out && is_way_up(pair);
}
// It has gone itself, or nobody answers, and has not for as long as a device tries.
bool World::must_fail(QueuePair& pair) const {
  if (pair.has_reported || pair.is_retired || pair.answered == pair.work.size()) return false;
  if (pair.is_stopped) return true;  // what is left is flushed
  const bool is_answered = pair.partner == kNone || (!queue_pairs_[pair.partner].is_stopped &&
                                                     !is_dead_[pair.peer] && is_way_up(pair));
  if (is_answered) {
    pair.silent_since_ns = 0;
    return false;
  }
  if (pair.silent_since_ns == 0) pair.silent_since_ns = now_ns_;
  return now_ns_ - pair.silent_since_ns > kSilenceNs;
}

bool World::advance() {
  if (random_.happens(15) && deliver_record()) return true;
  const uint32_t count = count_queue_pairs(), first = random_.between(0, count - 1);
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t id = (first + i) % count;
    QueuePair& pair = queue_pairs_[id];
    if (is_dead_[pair.rank]) continue;
    const uint32_t turn = random_.between(0, 2);
    for (uint32_t step = 0; step < 3; ++step) {
      const uint32_t what = (turn + step) % 3;
      if (what == 0 && can_send(pair)) return leave(pair), true;
      if (what == 1 && can_carry_out(pair)) {
        if (!shape_.overtakes || !carry_out_early(id)) carry_out(id);
        return true;
      }
      if (what == 2 && can_answer(pair)) return answer(pair), true;
    }
    if (must_fail(pair)) return report_failure(id), true;
  }
  return deliver_record();
}

bool World::deliver_record() {
  const uint32_t ways = shape_.ranks * shape_.ranks, first = random_.between(0, ways - 1);
  for (uint32_t i = 0; i < ways; ++i) {
    const uint32_t way = (first + i) % ways;
    Channel& channel = records_[way / shape_.ranks][way % shape_.ranks];
    if (channel.under_way.empty()) continue;
    channel.here.push_back(channel.under_way.front());
    channel.under_way.pop_front();
    return true;
  }
  return false;
}

// An entry as it is in memory now: its slot may hold a later one.
void World::leave(QueuePair& pair) {
  QueuePair::Work& work = pair.work[pair.sent++];
  if (!work.is_entry) return;
  const Ring::Slot& slot = ring(pair.rank, pair.peer, pair.lane).unsent[work.entry_slot];
  work.entry_truth = slot.truth;
  work.number = slot.number;
}

// --- Carrying out.

std::string World::name(const Truth& truth) const {
  static constexpr const char* kNames[] = {"put", "get", "write", "add", "read", "asked add"};
  return std::string(kNames[static_cast<size_t>(truth.kind)]) + " " +
         std::to_string(&truth - truths_.data()) + " of rank " + std::to_string(truth.from) + " to rank " +
         std::to_string(truth.to) + " on lane " + std::to_string(truth.lane);
}

// As a word or a get takes effect: all before it on the lane has, nothing behind it that is ordered has.
void World::check_order(const Truth& truth, uint32_t id) {
  const auto& lane = by_lane_[(truth.from * shape_.ranks + truth.to) * shape_.lanes + truth.lane];
  for (const uint32_t other : lane) {
    const Truth& one = truths_[other];
    if (other == id) continue;
    if (other < id && (one.kind == LaneOperationKind::kPut || changes_word(one.kind)) && !one.is_done())
      return violate(name(truth) + " takes effect before " + name(one));
    if (other > id && changes_word(one.kind) && one.times_done != 0 && changes_word(truth.kind))
      return violate(name(truth) + " takes effect after " + name(one));
  }
}

// What begins behind a fence: the answers of all gets before it are here, and all adds before it have
// happened.
void World::check_fence(const Truth& truth, uint32_t id) {
  if (!truth.is_fenced) return;
  const auto& lane = by_lane_[(truth.from * shape_.ranks + truth.to) * shape_.lanes + truth.lane];
  for (const uint32_t other : lane) {
    const Truth& one = truths_[other];
    const bool is_read = one.kind == LaneOperationKind::kGet || one.kind == LaneOperationKind::kReadWord;
    const bool is_open =
        is_read ? !one.is_answered
                : (one.kind == LaneOperationKind::kAddWord || one.kind == LaneOperationKind::kAskAdd) &&
                      one.times_done == 0;
    if (other < id && is_open) violate(name(truth) + " passes the fence behind " + name(one));
  }
}

// A get is not carried out again once the peer may have seen that it was complete: by a word behind a fence.
void World::check_fences_behind(const Truth& truth, uint32_t id) {
  bool is_fenced = false;
  for (const uint32_t other : by_lane_[(truth.from * shape_.ranks + truth.to) * shape_.lanes + truth.lane]) {
    const Truth& one = truths_[other];
    is_fenced |= other > id && one.is_fenced;
    if (is_fenced && changes_word(one.kind) && one.times_done != 0)
      violate(name(truth) + " is carried out again behind " + name(one));
  }
}

// The network has brought a write before what was sent in front of it: a word passes writes alone, and a put
// adds and gets, too. Other requests wait for everything in front of them.
bool World::carry_out_early(uint32_t id) {
  QueuePair& pair = queue_pairs_[id];
  bool are_writes = true;
  for (uint32_t i = pair.carried_out; i != pair.sent; ++i) {
    QueuePair::Work& work = pair.work[i];
    if (work.is_answers) continue;
    if (work.truth == kNone) return false;
    const LaneOperationKind kind = truths_[work.truth].kind;
    const bool is_ask = kind == LaneOperationKind::kAskAdd, is_put = kind == LaneOperationKind::kPut;
    const bool is_word = kind == LaneOperationKind::kWriteWord || is_ask;
    const bool may_pass = i != pair.carried_out && !work.is_early && (is_put || (is_word && are_writes));
    if (may_pass && random_.happens(50)) {
      if (is_put) place_early(work);
      if (is_ask) place_entry(work);
      return work.is_early = is_put || is_ask || carry_out_word(id, work);
    }
    are_writes = are_writes && (is_word || is_put);
  }
  return false;
}

// All of its bytes. It counts as carried out once all in front of it has been.
void World::place_early(const QueuePair::Work& work) {
  Truth& truth = truths_[work.truth];
  check_fence(truth, work.truth);
  for (uint32_t i = 0; i < count_packets_of(work.length_bytes); ++i) {
    const auto packet = static_cast<uint32_t>(work.offset / kPacketBytes) + i;
    truth.unplaced -= truth.placed[packet] ? 0 : 1;
    truth.placed[packet] = true;
  }
  truth.was_early = true;
}

void World::carry_out(uint32_t id) {
  QueuePair& pair = queue_pairs_[id];
  QueuePair& at = queue_pairs_[pair.partner];
  QueuePair::Work& work = pair.work[pair.carried_out];
  if (work.is_answers) place_answers(pair, work);
  if (work.truth == kNone || work.is_early) {
    at.packets += work.truth == kNone ? 1 : count_packets_of(work.length_bytes);
    ++pair.carried_out;
    return;
  }
  Truth& truth = truths_[work.truth];
  if (truth.kind == LaneOperationKind::kAskAdd) {
    place_entry(work);
  } else if (changes_word(truth.kind)) {
    if (!carry_out_word(id, work)) return;
  } else if (truth.kind == LaneOperationKind::kPut) {
    const auto packet = static_cast<uint32_t>(work.offset / kPacketBytes) + work.packets_done;
    const auto& lane = by_lane_[(truth.from * shape_.ranks + truth.to) * shape_.lanes + truth.lane];
    for (const uint32_t other : lane)
      if (other > work.truth && changes_word(truths_[other].kind) && truths_[other].times_done != 0)
        violate(name(truth) + " is placed again behind " + name(truths_[other]));
    if (shape_.says_counts && truth.unplaced == 0 && !truth.was_early)
      violate(name(truth) + " is placed again though it is done");
    if (truth.is_fenced) check_fence(truth, work.truth);
    truth.unplaced -= truth.placed[packet] ? 0 : 1;
    truth.placed[packet] = true;
  } else {
    check_order(truth, work.truth);
    check_fence(truth, work.truth);
    check_fences_behind(truth, work.truth);
    if (truth.kind == LaneOperationKind::kReadWord) work.value = words_[truth.to][truth.word];
  }
  ++at.packets;
  if (++work.packets_done == count_packets_of(work.length_bytes)) ++pair.carried_out;
}

// A device reads the word, and writes it a while later: its other adds wait, another device's do not.
bool World::carry_out_word(uint32_t id, QueuePair::Work& work) {
  const QueuePair& pair = queue_pairs_[id];
  Truth& truth = truths_[work.truth];
  uint64_t& word = words_[truth.to][truth.word];
  uint32_t& adding = adding_[truth.to][pair.rail];
  if (truth.kind == LaneOperationKind::kAddWord && !work.has_read) {
    if (adding != kNone) return false;
    adding = id;
    work.has_read = true;
    work.value = word;
    return false;
  }
  if (truth.kind == LaneOperationKind::kAddWord) {
    adding = kNone;
    word = work.value + truth.operand;
    sums_[truth.to][truth.word] += truth.operand;
  }
  if (++truth.times_done > 1) violate(name(truth) + " happens twice");
  truth.value = work.value;
  check_order(truth, work.truth);
  check_fence(truth, work.truth);
  return true;
}

// The puts in front of an add are placed before its entry is.
void World::check_puts_before(const Truth& truth, uint32_t id) {
  const auto& lane = by_lane_[(truth.from * shape_.ranks + truth.to) * shape_.lanes + truth.lane];
  for (const uint32_t other : lane)
    if (other < id && truths_[other].kind == LaneOperationKind::kPut && !truths_[other].is_done())
      violate("the entry of " + name(truth) + " is placed before " + name(truths_[other]));
}

void World::place_entry(const QueuePair::Work& work) {
  const Truth& truth = truths_[work.entry_truth];
  check_puts_before(truth, work.entry_truth);
  auto& slot = ring(truth.from, truth.to, truth.lane).requests[work.number % shape_.add_slots];
  if (slot.truth != kNone && slot.number != work.number && truths_[slot.truth].times_done == 0)
    violate(name(truth) + " takes the slot of " + name(truths_[slot.truth]));
  slot = {work.number, work.entry_truth};
}

// As the memory of the agent is when they leave.
void World::place_answers(const QueuePair& pair, const QueuePair::Work& work) {
  Ring& of = ring(pair.peer, pair.rank, pair.lane);
  const auto first = static_cast<uint32_t>(work.offset / sizeof(AddAnswer));
  for (uint32_t i = 0; i < work.length_bytes / sizeof(AddAnswer); ++i)
    of.answers[first + i] = of.applied[first + i];
}

bool World::carry_out_add(uint32_t from, uint32_t to, uint32_t lane, uint16_t number) {
  Ring& of = ring(from, to, lane);
  const Ring::Slot slot = of.requests[number % shape_.add_slots];
  if (slot.truth == kNone || slot.number != number) return false;
  Truth& truth = truths_[slot.truth];
  truth.value = words_[to][truth.word];
  words_[to][truth.word] += truth.operand;
  sums_[to][truth.word] += truth.operand;
  if (++truth.times_done > 1) violate(name(truth) + " happens twice");
  check_order(truth, slot.truth);
  check_fence(truth, slot.truth);
  of.applied[number % shape_.add_slots] = slot;
  return true;
}

void World::answer(QueuePair& pair) {
  QueuePair::Work& work = pair.work[pair.answered++];
  if (work.truth != kNone) {
    Truth& truth = truths_[work.truth];
    const bool is_read = truth.kind == LaneOperationKind::kGet || truth.kind == LaneOperationKind::kReadWord;
    if (is_read && work.offset + work.length_bytes >= truth.length_bytes) truth.is_answered = true;
  }
  if (work.is_signaled && !pair.is_retired) {
    const auto id = static_cast<uint32_t>(std::find_if(queue_pairs_.begin(), queue_pairs_.end(),
                                                       [&](const auto& one) { return &one == &pair; }) -
                                          queue_pairs_.begin());
    completions_[pair.rank].push_back({id, work.position, false, false});
  }
}

void World::report_failure(uint32_t id) {
  QueuePair& pair = queue_pairs_[id];
  if (pair.has_reported || pair.is_retired) return;
  pair.has_reported = true;
  const uint32_t position = pair.answered < pair.work.size() ? pair.work[pair.answered].position : 0;
  completions_[pair.rank].push_back({id, position, true, pair.is_at_fault});
}

// --- Devices.

uint32_t World::make_queue_pair(uint32_t rank, uint32_t peer, uint32_t lane, uint32_t rail,
                                uint32_t generation) {
  QueuePair pair;
  pair.rank = rank;
  pair.peer = peer;
  pair.lane = lane;
  pair.rail = rail;
  pair.generation = generation;
  queue_pairs_.push_back(std::move(pair));
  return count_queue_pairs() - 1;
}

void World::connect(uint32_t id, uint32_t partner) {
  queue_pairs_[id].partner = partner;
  queue_pairs_[id].is_connected = true;
}

void World::post(uint32_t id, const Request& request, uint32_t truth) {
  QueuePair::Work work;
  work.truth = request.operation == nullptr ? kNone : truth;
  work.is_answers = request.slot == LanePosted::kAnswers;
  work.is_entry = request.operation != nullptr && request.operation->kind == LaneOperationKind::kAskAdd;
  if (work.is_entry) {
    const QueuePair& pair = queue_pairs_[id];
    const uint16_t number = request.operation->asked_before;
    work.entry_slot = number % shape_.add_slots;
    ring(pair.rank, pair.peer, pair.lane).unsent[work.entry_slot] = {number, truth};
  }
  work.offset = request.offset;
  work.length_bytes = request.length_bytes;
  work.position = request.position;
  work.is_signaled = request.is_signaled;
  work.is_fenced = request.is_fenced;
  queue_pairs_[id].work.push_back(work);
}

// What it was in the middle of for its partner it has not done.
void World::stop(uint32_t id) {
  QueuePair& pair = queue_pairs_[id];
  pair.is_stopped = true;
  for (uint32_t& adding : adding_[pair.rank])
    if (adding != kNone && queue_pairs_[adding].partner == id) {
      QueuePair& asking = queue_pairs_[adding];
      asking.work[asking.carried_out].has_read = false;
      adding = kNone;
    }
}

void World::break_requester(uint32_t id, bool is_at_fault) {
  QueuePair& pair = queue_pairs_[id];
  if (!pair.is_connected) return;
  pair.is_at_fault = is_at_fault;
  report_failure(id);
}

void World::take_down(uint32_t rank, uint32_t rail, int64_t until_ns) {
  down_until_ns_[rank][rail] = std::max(down_until_ns_[rank][rail], until_ns);
}

void World::kill(uint32_t rank) {
  is_dead_[rank] = true;
  died_at_ns_[rank] = now_ns_;
  for (uint32_t id = 0; id < count_queue_pairs(); ++id)
    if (queue_pairs_[id].rank == rank) stop(id);
  for (auto& rails : adding_)  // nobody goes on with what it was in the middle of
    for (uint32_t& adding : rails)
      if (adding != kNone && queue_pairs_[adding].rank == rank) adding = kNone;
}

// --- The truth.

uint32_t World::add_truth(Truth truth) {
  if (truth.kind == LaneOperationKind::kPut) {
    truth.unplaced = truth.length_bytes == 0 ? 0 : count_packets_of(truth.length_bytes);
    truth.placed.resize(truth.unplaced);
  }
  const auto id = static_cast<uint32_t>(truths_.size());
  by_lane_[(truth.from * shape_.ranks + truth.to) * shape_.lanes + truth.lane].push_back(id);
  truths_.push_back(std::move(truth));
  return id;
}

void World::note_told(uint32_t id, bool is_answer_lost) {
  Truth& truth = truths_[id];
  if (truth.is_told) violate(name(truth) + " is told of twice");
  truth.is_told = true;
  lost_answers_ += is_answer_lost ? 1 : 0;
  if (!truth.is_done()) violate(name(truth) + " is told of before it is done");
  if (is_answer_lost && truth.kind != LaneOperationKind::kAddWord)
    violate(name(truth) + " has lost an answer that it never had");
}

void World::expect_sums() {
  for (uint32_t rank = 0; rank < shape_.ranks; ++rank)
    for (uint32_t word = 0; word < kWrittenWord; ++word)
      if (!is_dead_[rank] && words_[rank][word] != sums_[rank][word])
        violate("an add to word " + std::to_string(word) + " of rank " + std::to_string(rank) +
                " was lost between two devices");
}

}  // namespace verbena::protocol::lane_simulation
