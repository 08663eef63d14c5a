#include "protocol/lane_simulation/run.h"

#include <memory>

#include "protocol/lane_simulation/rank.h"

namespace verbena::protocol::lane_simulation {

namespace {

constexpr uint64_t kMaxSteps = 400'000;  // far more than any fair run needs: beyond it something is stuck
constexpr int64_t kIdleNs = 8 * kStepNs;

enum class Fault : uint8_t {
  kRequest,     // a request fails, carried out or not
  kFinal,       // a request fails that would fail anywhere
  kResponder,   // a queue pair goes, and nobody tells its end
  kRailBlinks,  // a port is down for a while
  kRailDies,    // for ever
  kProcess,     // a rank dies
  kRefusal,     // a new queue pair cannot be made
  kSleep,       // a rank does not call for a while
};
constexpr uint32_t kFaults = 8;

class Group {
 public:
  Group(const Shape& shape, uint64_t seed)
      : shape_(shape), random_(seed ^ 0x5A5A5A5A5A5A5A5A), world_(shape, random_) {
    for (uint32_t rank = 0; rank < shape.ranks; ++rank)
      ranks_.push_back(std::make_unique<Rank>(shape, random_, world_, rank));
    for (uint32_t a = 0; a < shape.ranks; ++a)
      for (uint32_t b = a; b < shape.ranks; ++b)
        for (uint32_t lane = 0; lane < shape.lanes; ++lane)
          for (uint32_t rail = 0; rail < shape.rails; ++rail) join(a, b, lane, rail);
  }

  Report run() {
    Report report;
    faults_left_ = shape_.faults;
    while (world_.violation().empty() && !is_over()) {
      if (++report.steps > kMaxSteps) {
        world_.violate("stuck" + describe());
        break;
      }
      step();
    }
    if (world_.violation().empty()) check_end(report);
    report.problem = world_.violation();
    report.operations = world_.truths().size();
    report.faults = injected_;
    for (const auto& rank : ranks_) {
      report.moves += rank->moves();
      for (uint32_t peer = 0; peer < shape_.ranks; ++peer)
        for (uint32_t lane = 0; lane < shape_.lanes; ++lane) {
          const LaneCounts& counts = rank->lane(peer, lane).counts();
          report.replays += counts.replayed_requests;
          report.failures += counts.failed_queue_pairs;
          report.revivals += counts.revived_queue_pairs;
        }
    }
    report.lost_answers = world_.count_lost_answers();
    return report;
  }

 private:
  void join(uint32_t a, uint32_t b, uint32_t lane, uint32_t rail) {
    const uint32_t first = world_.make_queue_pair(a, b, lane, rail, 0);
    ranks_[a]->lane(b, lane).begin(rail, first);
    if (a == b) return world_.connect(first, first);
    const uint32_t second = world_.make_queue_pair(b, a, lane, rail, 0);
    ranks_[b]->lane(a, lane).begin(rail, second);
    world_.connect(first, second);
    world_.connect(second, first);
  }

  void step() {
    world_.pass_time(kStepNs);
    if (faults_left_ != 0 && random_.happens(1)) inject();
    if (random_.happens(70)) {
      if (!world_.advance()) world_.pass_time(kIdleNs);
    } else {
      ranks_[random_.between(0, shape_.ranks - 1)]->step();
    }
  }

  void inject() {
    --faults_left_;
    ++injected_;
    const auto fault = static_cast<Fault>(random_.between(0, kFaults - 1));
    const uint32_t rank = random_.between(0, shape_.ranks - 1), rail = random_.between(0, shape_.rails - 1);
    const uint32_t pair = random_.between(0, world_.count_queue_pairs() - 1);
    const int64_t now_ns = world_.now_ns();
    switch (fault) {
      case Fault::kRequest:
        return world_.break_requester(pair, false);
      case Fault::kFinal:
        if (!random_.happens(10)) return world_.break_requester(pair, false);
        is_error_fair_ = true;
        return world_.break_requester(pair, true);
      case Fault::kResponder:
        return world_.stop(pair);
      case Fault::kRailBlinks:
        return world_.take_down(rank, rail, now_ns + random_.between(1, 900) * kStepNs);
      case Fault::kRailDies:
        is_error_fair_ |= shape_.rails == 1 || has_dead_rail_;
        has_dead_rail_ = true;
        return world_.take_down(rank, rail, INT64_MAX);
      case Fault::kProcess:
        if (!random_.happens(20)) return;
        is_error_fair_ = true;
        return world_.kill(rank);
      case Fault::kRefusal:
        ranks_[rank]->refuses = true;
        return;
      case Fault::kSleep:
        ranks_[rank]->sleep_until(now_ns + random_.between(1, 300) * kStepNs);
        return;
    }
  }

  bool is_over() {
    for (const auto& rank : ranks_)
      if (!rank->is_done()) return false;
    return true;
  }

  void check_end(Report& report) {
    for (const auto& rank : ranks_)
      for (uint32_t peer = 0; peer < shape_.ranks; ++peer)
        if (!rank->error(peer).empty()) {
          ++report.errors;
          const bool is_fair = is_error_fair_ || rank->error(peer) == "given up" ||
                               (!shape_.says_counts && rank->error(peer) == "uncertain");
          if (!is_fair)
            world_.violate("rank " + std::to_string(rank->rank()) + " gave rank " + std::to_string(peer) +
                           " up without need: " + rank->error(peer));
        }
    world_.expect_sums();
    if (report.errors != 0) return;
    for (const Truth& truth : world_.truths())
      if (!truth.is_told && !world_.is_dead(truth.from)) world_.violate("an operation is never told of");
  }

  std::string describe() {
    std::string text;
    for (const auto& rank : ranks_)
      for (uint32_t peer = 0; peer < shape_.ranks; ++peer)
        for (uint32_t lane = 0; lane < shape_.lanes; ++lane) {
          const SimLane& one = rank->lane(peer, lane);
          text += "; " + std::to_string(rank->rank()) + "->" + std::to_string(peer) + "." +
                  std::to_string(lane) + ": " + std::to_string(one.open_operations()) + " open, " +
                  std::to_string(one.unissued_operations()) + " unissued, main " +
                  std::to_string(one.main()) + ",";
          for (uint32_t q = 0; q < shape_.rails; ++q)
            text += " " + std::to_string(static_cast<int>(one.recovery().phase(q))) + "/" +
                    std::to_string(one.under_way(q));
          text += " " + rank->error(peer);
        }
    return text;
  }

  const Shape shape_;
  Random random_;
  World world_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  uint32_t faults_left_ = 0, injected_ = 0;
  bool is_error_fair_ = false, has_dead_rail_ = false;
};

}  // namespace

Shape draw_shape(uint64_t seed, bool fails) {
  Random random(seed);
  Shape shape;
  shape.ranks = random.between(1, 3);
  shape.rails = random.between(1, 3);
  shape.lanes = random.between(1, 2);
  shape.operations = random.between(10, 60);
  shape.ring = 1U << random.between(2, 5);
  shape.send_depth = random.between(2, shape.ring);
  shape.max_request_bytes = random.between(1, 12) * kPacketBytes;
  shape.faults = fails ? random.between(1, 5) : 0;
  shape.says_counts = !random.happens(10);
  if (random.happens(50)) {
    shape.packet_number_bits = 8;
    shape.max_put_packets = 60;
    shape.max_request_bytes = random.between(1, PacketNumbers(8).max_under_way()) * kPacketBytes;
  }
  // A word that waits keeps packets from being under way, which are to wrap.
  shape.overtakes = random.happens(30) && shape.packet_number_bits == PacketNumbers::kBits;
  if (random.happens(40)) {
    shape.add_slots = 1U << random.between(0, 4);
    shape.says_counts &= !random.happens(25);
  }
  return shape;
}

void Report::add(const Report& other) {
  operations += other.operations;
  steps += other.steps;
  faults += other.faults;
  failures += other.failures;
  revivals += other.revivals;
  replays += other.replays;
  lost_answers += other.lost_answers;
  moves += other.moves;
  errors += other.errors;
}

Report run(uint64_t seed, bool fails) {
  return Group(draw_shape(seed, fails), seed).run();
}

}  // namespace verbena::protocol::lane_simulation
