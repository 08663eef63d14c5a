// When the packets of a send queue left it. A packet may wait there while another one, posted later to a
// shorter queue, overtakes it: what counts as lost is found by these times. Pure.
#pragma once

#include <array>
#include <cstdint>

#include "protocol/datagram/packet.h"

namespace verbena::protocol::datagram {

class Departures {
 public:
  // Of a packet's place among all of its queue, wrapping: what can be asked for.
  static constexpr uint32_t kIndexBits = 24;
  static constexpr uint32_t kTimes = 256;  // of those that left last

  uint32_t count() const { return count_; }  // wraps
  void note(Stamp when) { times_[count_++ % kTimes] = when; }
  // Whether the packet has left; if it is one of the last that did, also when.
  bool has_left(uint32_t index, Stamp& when) const {
    constexpr int kSpareBits = 32 - kIndexBits;
    const auto back = static_cast<int32_t>((count_ - index) << kSpareBits) >> kSpareBits;
    if (back > 0 && back <= static_cast<int32_t>(kTimes)) when = times_[index % kTimes];
    return back > 0;
  }

 private:
  uint32_t count_ = 0;
  std::array<Stamp, kTimes> times_{};
};

}  // namespace verbena::protocol::datagram
