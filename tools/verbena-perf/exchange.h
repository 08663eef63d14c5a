#pragma once
#include <cstdint>
#include <vector>

#include "common/line_channel.h"
#include "verbena-perf/options.h"
#include "verbena-perf/receive_side.h"
#include "verbena-perf/send_side.h"

namespace verbena::tools::perf {

// Runs passes between the two processes. A pass starts when both have posted their first receives.
class Exchange {
 public:
  Exchange(SendSide& send, ReceiveSide& receive, LineChannel& partner, const PerfOptions& options)
      : send_(send), receive_(receive), partner_(partner), options_(options) {}

  // Measures a ping-pong. Returns half the round-trip time of every message in microseconds; on the answering
  // side, nothing.
  std::vector<double> run_latency(uint64_t length_bytes, uint64_t count, bool distinct);

  // Sends messages in one direction. Returns the seconds from the start to the last consumed message on the
  // receiving side; 0 on the sending side.
  double run_bandwidth(uint64_t length_bytes, uint64_t count, bool distinct);

  // After a pass: true if --until asks to repeat it. The starting side decides for both.
  bool is_wanted_again();

 private:
  bool starts() const { return options_.child == 0; }
  void meet_partner();
  std::string receive_word(int64_t deadline_ns);
  void post_receives();
  void send_one();
  void receive_one(uint64_t already_completed);

  SendSide& send_;
  ReceiveSide& receive_;
  LineChannel& partner_;
  const PerfOptions& options_;
  uint64_t latency_sequence_ = 0;
  uint64_t bandwidth_sequence_ = kBandwidthSequences;
  static constexpr uint64_t kBandwidthSequences = 1ULL
                                                  << 48;  // so that the two modes have different patterns
};

}  // namespace verbena::tools::perf
