// When the packets of a send queue left it. A packet may wait there while another one, posted later to a
// shorter queue, overtakes it: what counts as lost is found by these times. Pure.
#pragma once

#include <array>
#include <cstdint>

#include "protocol/datagram/packet.h"

namespace verbena::protocol::datagram {

// Between two looks at the queue's completions.
struct Departure {
  Stamp after, before;
};

class Departures {
 public:
  // Of a packet's place among all of its queue, wrapping: what can be asked for.
  static constexpr uint32_t kIndexBits = 24;
  static constexpr uint32_t kTimes = 256;  // of those that left last

  uint32_t count() const { return count_; }  // wraps
  void note(Departure when) { times_[count_++ % kTimes] = when; }
  // Whether the packet has left, and when: of one that left long ago only `before` is set, at the latest.
  bool has_left(uint32_t index, Departure& when) const {
    constexpr int kSpareBits = 32 - kIndexBits;
    const auto back = static_cast<int32_t>((count_ - index) << kSpareBits) >> kSpareBits;
    if (back <= 0) return false;
    if (back <= static_cast<int32_t>(kTimes)) {
      when = times_[index % kTimes];
    } else {
      when.before = times_[count_ % kTimes].before;
    }
    return true;
  }

 private:
  uint32_t count_ = 0;
  std::array<Departure, kTimes> times_{};
};

}  // namespace verbena::protocol::datagram
