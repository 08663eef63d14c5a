// One rank: the lanes of plugin/protocol as an endpoint has them, over the simulated world, and the
// application that posts to them: what plugin/transport/one_sided does with verbs, done with what a seed
// decides.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "protocol/lane_simulation/world.h"
#include "protocol/word_rail.h"

namespace verbena::protocol::lane_simulation {

class Rank;

class SimLane final : public LaneCore<SimLane, SimTypes> {
 public:
  using Core = LaneCore<SimLane, SimTypes>;

  struct Memory {
    std::vector<LaneOperation<SimTypes>> operations;
    std::vector<LaneShare> shares;
    std::vector<LanePosted> posted;
    explicit Memory(const Shape& shape);
    LaneStorage<SimTypes> storage() { return {operations, shares, posted}; }
  };
  SimLane(Rank& rank, uint32_t peer, uint32_t lane, std::unique_ptr<Memory> memory);

  uint32_t queue_pair(uint32_t q) const { return queue_pairs_[q]; }
  void begin(uint32_t q, uint32_t id) { queue_pairs_[q] = id; }
  void post_truth(uint32_t truth);
  // Handles a completion of a queue pair that is still in use.
  void take(const Completion& completion);
  // As the agent: adds what the peer asks for. As its peer: takes its answers.
  void serve();
  void probe();
  // What is complete is told.
  void tell();

 private:
  friend Core;

  int64_t now_ns() const;
  uint32_t packets_of(uint32_t, uint64_t bytes) const { return count_packets_of(bytes); }
  void post(uint32_t q, const Request& request);
  void stop_pair(uint32_t q, LaneRecord& record);
  void retire_pair(uint32_t q);
  bool is_usable(uint32_t q) const;
  bool renew_pair(uint32_t q, LaneRecord& record);
  bool connect_pair(uint32_t q, const LaneRecord& record);
  void send_record(const LaneRecord& record);
  void fail(LaneFailure failure, uint32_t q);
  void note_lost(uint32_t) {}
  void note_settled(uint32_t, uint32_t) {}
  void note_revived(uint32_t) {}

  Rank& rank_;
  const uint32_t peer_, lane_;
  std::unique_ptr<Memory> memory_;
  std::array<uint32_t, kMaxRails> queue_pairs_{};
  std::vector<uint32_t> truth_of_;  // by slot
  std::vector<uint32_t> slot_of_;   // of adds that the peer's agent carries out, by number
};

class Rank {
 public:
  Rank(const Shape& shape, Random& random, World& world, uint32_t rank);

  SimLane& lane(uint32_t peer, uint32_t lane) { return *peers_[peer].lanes[lane]; }
  uint32_t rank() const { return rank_; }
  // One call of the application into its endpoint.
  void step();
  bool is_done();
  // Why it gave a peer up; empty: it did not.
  const std::string& error(uint32_t peer) const { return peers_[peer].error; }
  uint32_t moves() const { return word_rail_.moves(); }
  void fail(uint32_t peer, LaneFailure failure);
  void sleep_until(int64_t ns) { asleep_until_ns_ = ns; }

  // Its next new queue pair cannot be made.
  bool refuses = false;

  // --- For its lanes and its word rail.
  const Shape& shape() const { return shape_; }
  World& world() { return world_; }
  uint32_t rails() const { return shape_.rails; }
  bool is_whole(uint32_t rail);
  void stop_rail(uint32_t rail);
  void tell_word_rail(uint32_t rail, uint32_t moves);

 private:
  struct Peer {
    std::vector<std::unique_ptr<SimLane>> lanes;
    std::string error;
    uint32_t word_rail_news = 0;
  };

  bool works(uint32_t peer) const { return peers_[peer].error.empty(); }
  void post_random();
  void absorb_records(uint32_t peer);
  void give_up_dying();
  template <typename Do>
  void for_lanes(const Do& act) {
    for (uint32_t peer = 0; peer < shape_.ranks; ++peer)
      for (uint32_t lane = 0; lane < shape_.lanes && works(peer); ++lane)
        act(peer, *peers_[peer].lanes[lane]);
  }

  const Shape& shape_;
  Random& random_;
  World& world_;
  const uint32_t rank_;
  WordRail word_rail_{0};
  std::vector<Peer> peers_;
  uint32_t posted_ = 0;
  int64_t asleep_until_ns_ = 0;
};

}  // namespace verbena::protocol::lane_simulation
