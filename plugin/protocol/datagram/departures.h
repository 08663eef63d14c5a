// Records when the packets of a send queue were sent. A packet may wait in its queue while a packet that was
// posted later to a shorter queue overtakes it, so losses are detected by these times. Pure.
#pragma once

#include <array>
#include <cstdint>

#include "protocol/datagram/packet.h"

namespace verbena::protocol::datagram {

class Departures {
 public:
  // The bits of a packet's index among all packets of its queue, wrapping. Older packets cannot be looked up.
  static constexpr uint32_t kIndexBits = 24;
  static constexpr uint32_t kTimes = 256;  // of the packets sent last

  uint32_t count() const { return count_; }  // wraps
  void note(Stamp when) { times_[count_++ % kTimes] = when; }
  // Returns whether the packet was sent and, if it is one of the last ones, when.
  bool has_left(uint32_t index, Stamp& when) const {
    constexpr int kSpareBits = 32 - kIndexBits;
    const auto back = static_cast<int32_t>((count_ - index) << kSpareBits) >> kSpareBits;
    // FAULT(departure_of_long_ago_is_made_up)
    if (back > 0 && back <= static_cast<int32_t>(kTimes)) when = times_[index % kTimes];
    return back > 0;
  }

 private:
  uint32_t count_ = 0;
  std::array<Stamp, kTimes> times_{};
};

}  // namespace verbena::protocol::datagram
