#pragma once
#include <cstdint>
#include <vector>

#include "common/line_channel.h"
#include "verbena-perf/options.h"
#include "verbena-perf/receive_side.h"
#include "verbena-perf/send_side.h"

namespace verbena::tools::perf {

// Runs passes between the two processes, in step: each begins when both have posted their first receives.
class Exchange {
 public:
  Exchange(SendSide& send, ReceiveSide& receive, LineChannel& partner, const Options& options)
      : send_(send), receive_(receive), partner_(partner), options_(options) {}

  // Ping-pong. Half the round trip of every message, in microseconds; empty on the answering side.
  std::vector<double> run_latency(uint64_t length_bytes, uint64_t count, bool distinct);

  // Messages one way. On the receiving side the seconds from the start to the last consumed; else 0.
  double run_bandwidth(uint64_t length_bytes, uint64_t count, bool distinct);

 private:
  bool starts() const { return options_.child == 0; }
  void meet_partner();
  void post_receives();
  void send_one();
  void receive_one(uint64_t already_completed);

  SendSide& send_;
  ReceiveSide& receive_;
  LineChannel& partner_;
  const Options& options_;
  uint64_t latency_sequence_ = 0;
  uint64_t bandwidth_sequence_ = kBandwidthSequences;
  static constexpr uint64_t kBandwidthSequences = 1ULL << 48;  // patterns of the two modes never meet
};

}  // namespace verbena::tools::perf
