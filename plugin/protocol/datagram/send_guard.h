// The congestion window: how many packets to a peer may be in flight. The receiver paces its senders by
// grants, which limit the queue at its own link. The window protects the rest of the network, whose capacity
// may be lower. It shrinks when the median of the last round trips is above the target, and grows again when
// it is below. The median is used because packets take many paths, and a single sample says little. The
// target is above the queue that grants allow, so that the two controls do not work against each other. Pure.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

namespace verbena::protocol::datagram {

class SendGuard {
 public:
  explicit SendGuard(uint32_t most_packets) : most_(most_packets), window_(most_packets) {}

  uint32_t window() const { return window_; }

  // `queue_ns` is the queueing time at the receiver's link that a full set of grants causes. Evaluated once
  // for each round trip.
  void note_round_trip(int64_t sample_ns, int64_t shortest_ns, int64_t queue_ns, int64_t now_ns) {
    samples_[next_++ % kSamples] = static_cast<uint32_t>(std::min<int64_t>(sample_ns, UINT32_MAX));
    if (next_ < kSamples || now_ns < look_at_ns_) return;
    const int64_t median = find_median(), target = shortest_ns + queue_ns + kSlackNs;
    look_at_ns_ = now_ns + median;
    if (median > target) {
      const int64_t percent = std::max<int64_t>(100 * target / median, kLeastPercent);
      window_ = std::max(static_cast<uint32_t>(window_ * percent / 100), kLeast);
    } else {
      window_ = std::min(window_ + kStep, most_);
    }
  }

 private:
  static constexpr uint32_t kSamples = 8, kLeast = 8, kStep = 4;
  static constexpr int64_t kSlackNs = 16'000, kLeastPercent = 60;

  int64_t find_median() const {
    auto sorted = samples_;
    std::nth_element(sorted.begin(), sorted.begin() + kSamples / 2, sorted.end());
    return sorted[kSamples / 2];
  }

  uint32_t most_, window_;
  uint32_t next_ = 0;
  int64_t look_at_ns_ = 0;
  std::array<uint32_t, kSamples> samples_{};
};

}  // namespace verbena::protocol::datagram
