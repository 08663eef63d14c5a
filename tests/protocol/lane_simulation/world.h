// What lies between the ranks of a group of one-sided endpoints: devices, queue pairs, words, the way of the
// records; and what became of each operation, by which every rule of the lanes is looked at as it happens.
#pragma once

#include <array>
#include <deque>
#include <string>
#include <vector>

#include "protocol/lane_core.h"
#include "protocol/random.h"
#include "protocol/simulation/times.h"

namespace verbena::protocol::lane_simulation {

using simulation::kRecoveryTimes;
using simulation::kStepNs;

inline constexpr uint64_t kPacketBytes = 4096;
inline constexpr uint32_t kNone = UINT32_MAX;
inline constexpr uint32_t kWords = 3;                // of each rank
inline constexpr uint32_t kWrittenWord = 2;          // the one that is written, the others are added to
inline constexpr int64_t kSilenceNs = 60 * kStepNs;  // a device goes on with a request for so long

struct SimTypes {
  struct Local {};
  struct Remote {
    uint32_t word = 0;
  };
};
using Request = LaneRequest<SimTypes>;

inline uint32_t count_packets_of(uint64_t bytes) {
  return static_cast<uint32_t>(std::max<uint64_t>((bytes + kPacketBytes - 1) / kPacketBytes, 1));
}

struct Shape {
  uint32_t ranks = 2, rails = 1, lanes = 1;
  uint32_t operations = 40;  // of each rank
  uint32_t ring = 16, send_depth = 16;
  uint64_t max_request_bytes = 3 * kPacketBytes;
  uint32_t faults = 0;
  bool says_counts = true;  // devices say what they have carried out
  uint32_t add_slots = 0;   // agents add to words, over rings of this length; 0: devices do
  bool overtakes = false;   // a write may be placed before what was sent in front of it
  // Narrower than a device's 24 bits where the puts of a queue pair are to wrap them.
  uint32_t packet_number_bits = PacketNumbers::kBits;
  uint32_t max_put_packets = 12;
};
Shape draw_shape(uint64_t seed, bool fails);

// An operation, as the world sees it.
struct Truth {
  uint32_t from = 0, to = 0, lane = 0;
  LaneOperationKind kind{};
  uint64_t length_bytes = 0, operand = 0;
  uint32_t word = 0;
  bool is_fenced = false;
  std::vector<bool> placed{};  // of a put, by packet
  uint32_t unplaced = 0;
  bool was_early = false;    // placed before its device said so, and perhaps again after a failure
  uint32_t times_done = 0;   // a word: carried out
  bool is_answered = false;  // a get
  bool is_told = false;
  uint64_t value = 0;  // of the word before it

  bool is_done() const {
    return changes_word(kind)                ? times_done == 1
           : kind == LaneOperationKind::kPut ? unplaced == 0
                                             : is_answered;
  }
};

struct QueuePair {
  struct Work {
    uint32_t truth = kNone;  // kNone: it tries the queue pair
    uint64_t offset = 0, length_bytes = 0;
    uint32_t position = 0;
    bool is_signaled = false, is_fenced = false;
    bool has_read = false;  // an add that has begun
    bool is_answers = false;
    bool is_entry = false;
    uint32_t entry_slot = 0;       // of an entry, in its ring
    uint32_t entry_truth = kNone;  // as it was when the request left
    uint16_t number = 0;           // the same
    uint64_t value = 0;
    uint32_t packets_done = 0;
    bool is_early = false;  // placed before its turn
  };

  uint32_t rank = 0, peer = 0, lane = 0, rail = 0, generation = 0;
  uint32_t partner = kNone;
  bool is_connected = false;
  bool is_stopped = false;    // no request of the partner is carried out any more, nor any of its own leaves
  bool is_retired = false;    // its completions mean nothing
  bool has_reported = false;  // its failure
  bool is_at_fault = false;   // what fails next fails for good
  std::vector<Work> work;
  uint32_t sent = 0, carried_out = 0, answered = 0;
  uint32_t packets = 0;  // that it has carried out for its partner
  int64_t silent_since_ns = 0;
};

struct Completion {
  uint32_t queue_pair;
  uint32_t position;
  bool has_failed, is_at_fault;
};

class World {
 public:
  World(const Shape& shape, Random& random);

  int64_t now_ns() const { return now_ns_; }
  void pass_time(int64_t ns) { now_ns_ += ns; }
  // One thing happens, if anything can.
  bool advance();

  // --- Devices.
  uint32_t make_queue_pair(uint32_t rank, uint32_t peer, uint32_t lane, uint32_t rail, uint32_t generation);
  QueuePair& queue_pair(uint32_t id) { return queue_pairs_[id]; }
  void connect(uint32_t id, uint32_t partner);
  void post(uint32_t id, const Request& request, uint32_t truth);
  void stop(uint32_t id);
  bool is_up(uint32_t rank, uint32_t rail) const { return now_ns_ >= down_until_ns_[rank][rail]; }
  void take_down(uint32_t rank, uint32_t rail, int64_t until_ns);
  std::deque<Completion>& completions(uint32_t rank) { return completions_[rank]; }
  // A fault: its requests fail from here on.
  void break_requester(uint32_t id, bool is_at_fault);
  uint32_t count_queue_pairs() const { return static_cast<uint32_t>(queue_pairs_.size()); }

  // --- Records.
  void send_record(uint32_t from, uint32_t to, const LaneRecord& record) {
    if (!is_dead_[from] && !is_dead_[to]) records_[from][to].under_way.push_back(record);
  }
  std::deque<LaneRecord>& records(uint32_t from, uint32_t to) { return records_[from][to].here; }
  void kill(uint32_t rank);
  bool is_dead(uint32_t rank) const { return is_dead_[rank]; }
  // As the others see it, a while after.
  bool is_gone(uint32_t rank) const { return is_dead_[rank] && now_ns_ - died_at_ns_[rank] > kSilenceNs; }

  // --- Agents. The lane from `from` to `to`: its entries in the memory of `to`, its answers in that of
  // `from`.
  struct Ring {
    struct Slot {
      uint16_t number = UINT16_MAX;
      uint32_t truth = kNone;
    };
    std::vector<Slot> requests, answers, unsent, applied;
  };
  Ring& ring(uint32_t from, uint32_t to, uint32_t lane) {
    return rings_[(from * shape_.ranks + to) * shape_.lanes + lane];
  }
  // The add of this number, if its entry is there; whether it is.
  bool carry_out_add(uint32_t from, uint32_t to, uint32_t lane, uint16_t number);

  // --- The truth.
  uint32_t add_truth(Truth truth);
  Truth& truth(uint32_t id) { return truths_[id]; }
  std::vector<Truth>& truths() { return truths_; }
  void note_told(uint32_t id, bool is_answer_lost);
  uint64_t count_lost_answers() const { return lost_answers_; }
  // Where nothing failed for good: every word is the sum of what was added to it.
  void expect_sums();
  void violate(const std::string& what) {
    if (violation_.empty()) violation_ = what;
  }
  const std::string& violation() const { return violation_; }

 private:
  struct Channel {
    std::deque<LaneRecord> under_way, here;
  };

  bool deliver_record();
  bool can_send(const QueuePair& pair) const;
  bool can_carry_out(const QueuePair& pair) const;
  bool can_answer(const QueuePair& pair) const;
  bool must_fail(QueuePair& pair) const;
  bool is_way_up(const QueuePair& pair) const {
    return is_up(pair.rank, pair.rail) && is_up(pair.peer, pair.rail);
  }
  bool carry_out_early(uint32_t id);
  void carry_out(uint32_t id);
  bool carry_out_word(uint32_t id, QueuePair::Work& work);
  void leave(QueuePair& pair);
  void place_entry(const QueuePair::Work& work);
  void place_answers(const QueuePair& pair, const QueuePair::Work& work);
  void check_puts_before(const Truth& truth, uint32_t id);
  void answer(QueuePair& pair);
  void report_failure(uint32_t id);
  void check_order(const Truth& truth, uint32_t id);
  void place_early(const QueuePair::Work& work);
  void check_fence(const Truth& truth, uint32_t id);
  void check_fences_behind(const Truth& truth, uint32_t id);
  std::string name(const Truth& truth) const;

  const Shape& shape_;
  Random& random_;
  int64_t now_ns_ = kStepNs;
  std::deque<QueuePair> queue_pairs_;
  std::vector<std::vector<int64_t>> down_until_ns_;
  std::vector<std::deque<Completion>> completions_;
  std::vector<std::vector<Channel>> records_;
  std::vector<bool> is_dead_;
  std::vector<int64_t> died_at_ns_;
  // By rank and rail: the queue pair for which the device is in the middle of an add.
  std::vector<std::vector<uint32_t>> adding_;
  std::vector<std::array<uint64_t, kWords>> words_, sums_;
  std::vector<Truth> truths_;
  std::vector<std::vector<uint32_t>> by_lane_;  // from, to, lane: truths in order
  std::vector<Ring> rings_;                     // the same
  uint64_t lost_answers_ = 0;
  std::string violation_;
};

}  // namespace verbena::protocol::lane_simulation
