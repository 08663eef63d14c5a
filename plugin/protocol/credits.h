// Receive entries are a promise: the receiver keeps `window` of them posted for each queue pair of a
// connection, the sender takes one for every chunk with an immediate, and gets it back when the receiver has
// posted the entry again. While both keep to this, a sender never meets an empty receive queue.
#pragma once

#include <array>
#include <cstdint>

#include "protocol/sequence.h"
#include "protocol/wire.h"

namespace verbena::protocol {

class SenderCredits {
 public:
  void set_window(uint32_t queue_pair, uint32_t entries) { window_[queue_pair] = entries; }

  uint32_t available(uint32_t queue_pair) const {
    return window_[queue_pair] - (taken_[queue_pair] - returned_[queue_pair]);
  }
  void take(uint32_t queue_pair) { ++taken_[queue_pair]; }

  // False if the peer claims to have returned more than was taken: it lies, or its memory is damaged.
  bool absorb(uint32_t queue_pair, uint32_t returned) {
    const uint32_t newer = take_newer(returned_[queue_pair], returned);
    if (is_before(taken_[queue_pair], newer)) return false;
    returned_[queue_pair] = newer;
    return true;
  }

 private:
  std::array<uint32_t, kMaxQueuePairs> window_{}, taken_{}, returned_{};
};

class ReceiverCredits {
 public:
  void set_window(uint32_t queue_pair, uint32_t entries) { window_[queue_pair] = entries; }
  void give_back(uint32_t queue_pair, uint32_t entries) { returned_[queue_pair] += entries; }

  // Whether the sender should hear of it. Told at a quarter of the window, a sender that needs at most half
  // of the window for one message cannot starve: whatever is not outstanding and not told is less than a
  // quarter.
  bool is_update_due(uint32_t consumed) const {
    if (consumed - advertised_consumed_ >= kMessageRing / 4) return true;
    for (uint32_t q = 0; q < kMaxQueuePairs; ++q) {
      const uint32_t untold = returned_[q] - advertised_[q];
      if (untold != 0 && untold * 4 >= window_[q]) return true;
    }
    return false;
  }

  // The line to send; from here on it counts as told.
  CreditLine take_update(uint32_t consumed) {
    CreditLine line{};
    for (uint32_t q = 0; q < kMaxQueuePairs; ++q) line.returned[q] = advertised_[q] = returned_[q];
    line.consumed = advertised_consumed_ = consumed;
    return line;
  }

 private:
  std::array<uint32_t, kMaxQueuePairs> window_{}, returned_{}, advertised_{};
  uint32_t advertised_consumed_ = 0;
};

}  // namespace verbena::protocol
