// Rails as a sender meets them: each moves what it is given one after the other, at a rate that may change,
// and its completions are seen when the sender looks. Time is simulated; a seed decides everything.
#pragma once

#include <array>
#include <cstdint>
#include <deque>

#include "protocol/rail_share.h"
#include "protocol/random.h"

namespace verbena::protocol::simulation {

class Rails {
 public:
  Rails(uint32_t count, const RailShare::Speeds& speed_mbps, uint64_t min_stripe_bytes, uint64_t seed);

  // What it really does, from now on: bytes per nanosecond. 0: it has stalled.
  void set_rate(uint32_t rail, double rate) { rails_[rail].rate = rate; }
  // Between two looks of the sender: up to this much.
  void set_look_every(int64_t look_ns) { look_ns_ = look_ns; }

  Shares send(uint64_t length_bytes);
  // Sends messages of this length for so long, at most `window` at a time; how much each rail was given.
  Shares run(int64_t duration_ns, uint64_t length_bytes, uint32_t window);

  RailShare& share() { return share_; }
  int64_t now_ns() const { return now_ns_; }
  uint64_t done_bytes() const { return done_bytes_; }

 private:
  struct Piece {
    uint32_t message;
    uint64_t bytes;
    double left_bytes;
    int64_t arrives_ns;  // once nothing is left
  };
  struct Rail {
    double rate = 1;
    std::deque<Piece> moving, landing;
  };

  void advance();
  void look();

  uint32_t count_;
  RailShare share_;
  Random random_;
  std::array<Rail, kMaxQueuePairs> rails_;
  std::deque<uint32_t> pieces_left_;  // of each message under way, the oldest first
  uint32_t oldest_ = 0;
  uint64_t done_bytes_ = 0;
  int64_t now_ns_ = 1'000'000, next_look_ns_ = 0, latency_ns_ = 2000, look_ns_ = 1000;
};

}  // namespace verbena::protocol::simulation
