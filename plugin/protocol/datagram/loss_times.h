// Decides when a packet is considered lost: if a packet that was sent at least a window of time later has
// arrived. The decision depends on time, not on the number of later packets, because packets on different
// paths can overtake each other. There are two windows: a short one for packets of the same path, and a
// longer one for packets of different paths. Both grow when a retransmission turns out to have been
// unnecessary (RFC 8985 does this with one window). This file also estimates the round-trip time and computes
// the timers from it. Pure: no clock and no verbs.
#pragma once

#include <algorithm>
#include <cstdint>

namespace verbena::protocol::datagram {

// All times are in ns.
struct LossSettings {
  // Minimum; otherwise one and four times the shortest round trip.
  int64_t same_path = 8'000, across_paths = 32'000;
  int64_t least_timeout = 100'000;
  int64_t ack_delay = 8'000;  // of the peer
};

class LossTimes {
 public:
  explicit LossTimes(const LossSettings& settings) : settings_(settings) {}

  int64_t same_path_ns() const { return least_same() + more_same_; }
  int64_t across_paths_ns() const { return least_across() + more_across_; }
  int64_t smooth_ns() const { return smooth_; }
  // Returns the shortest round trip of the last seconds; 0 if there is none.
  int64_t shortest_ns() const {
    const int64_t shortest = std::min(shortest_, last_shortest_);
    return shortest == kNone ? 0 : shortest;
  }

  // Only for new data, because the echo in an old acknowledgement is not a round trip.
  void note_round_trip(int64_t sample_ns, int64_t now_ns) {
    sample_ns = std::max<int64_t>(sample_ns, 1);
    if (now_ns - window_began_ns_ > kWindowNs) {
      last_shortest_ = shortest_;
      shortest_ = kNone;
      window_began_ns_ = now_ns;
    }
    shortest_ = std::min(shortest_, sample_ns);
    if (smooth_ == 0) {
      smooth_ = sample_ns;
      deviation_ = sample_ns / 2;
      return;
    }
    const int64_t error = sample_ns - smooth_;
    smooth_ += error / 8;
    deviation_ += ((error < 0 ? -error : error) - deviation_) / 4;
  }
  // The peer has received packets twice: packets that counted as lost were only delayed.
  void note_in_vain(int64_t now_ns) {
    packets_in_peace_ = 0;
    if (now_ns - grown_ns_ < smooth_) return;
    grown_ns_ = now_ns;
    // Grows by a fraction of the window. On hosts whose processes share a core, packets are delayed by many
    // times the shortest round trip.
    more_same_ = std::min(more_same_ + same_path_ns() / 8, std::max<int64_t>(smooth_ - least_same(), 0));
    more_across_ =
        std::min(more_across_ + across_paths_ns() / 8, std::max<int64_t>(2 * smooth_ - least_across(), 0));
  }
  void note_delivered(uint32_t packets) {
    packets_in_peace_ += packets;
    if (packets_in_peace_ < kPeacePackets) return;
    packets_in_peace_ = 0;
    more_same_ -= (more_same_ + 7) / 8;
    more_across_ -= (more_across_ + 7) / 8;
  }

  // Returns how long to wait without an answer before the newest packet is sent once more, so that its
  // acknowledgement reports the others.
  int64_t probe_ns() const { return std::max<int64_t>(30'000, 2 * smooth_) + settings_.ack_delay; }
  // Returns how long a packet may be in flight. The time doubles with each round without an answer.
  int64_t timeout_ns() const {
    return std::max(settings_.least_timeout,
                    smooth_ + 4 * deviation_ + across_paths_ns() + settings_.ack_delay)
           << std::min(rounds_, kMostDoublings);
  }
  void note_timeout() { ++rounds_; }
  void note_answer() { rounds_ = 0; }
  uint32_t rounds() const { return rounds_; }

 private:
  static constexpr int64_t kNone = INT64_MAX, kWindowNs = 2'000'000'000;
  static constexpr uint32_t kPeacePackets = 20'000, kMostDoublings = 6;

  int64_t least_same() const { return std::max(settings_.same_path, shortest_ns()); }
  int64_t least_across() const { return std::max(settings_.across_paths, 4 * shortest_ns()); }

  LossSettings settings_;
  int64_t more_same_ = 0, more_across_ = 0;
  int64_t smooth_ = 0, deviation_ = 0;
  int64_t shortest_ = kNone, last_shortest_ = kNone, window_began_ns_ = 0;
  int64_t grown_ns_ = 0;
  uint32_t packets_in_peace_ = 0;
  uint32_t rounds_ = 0;
};

}  // namespace verbena::protocol::datagram
