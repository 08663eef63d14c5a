// A credit is a receive entry that the peer may use: the receiver keeps `window` of them posted for each
// queue pair of a connection, the sender takes one for every chunk with an immediate, and gets it back when
// the receiver has posted the entry again. While both keep to this, a sender never meets an empty receive
// queue.
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
  uint32_t window(uint32_t queue_pair) const { return window_[queue_pair]; }

  // A queue pair that has failed has nothing to offer, whatever the receiver still gives back.
  void stop(uint32_t queue_pair) {
    window_[queue_pair] = 0;
    taken_[queue_pair] = returned_[queue_pair];
  }
  // Its successor: the receiver has given back `returned` and holds `held`. What was lost counts for nobody.
  void restart(uint32_t queue_pair, uint32_t entries, uint32_t returned, uint32_t held) {
    window_[queue_pair] = entries;
    returned_[queue_pair] = returned;
    taken_[queue_pair] = returned + held;  // FAULT(held_pages_do_not_count_at_a_revival)
  }

  uint32_t returned(uint32_t queue_pair) const { return returned_[queue_pair]; }

  // False if the peer claims to have returned more than was taken: it lies, or its memory is damaged.
  bool absorb(uint32_t queue_pair, uint32_t returned) {
    const uint32_t newer = take_newer(returned_[queue_pair], returned);
    if (is_before(taken_[queue_pair], newer)) return window_[queue_pair] == 0;  // not from one that stopped
    returned_[queue_pair] = newer;
    return true;
  }

 private:
  std::array<uint32_t, kMaxQueuePairs> window_{}, taken_{}, returned_{};
};

class ReceiverCredits {
 public:
  // `consumed`: number of the first message.
  explicit ReceiverCredits(uint32_t consumed = 0) : advertised_consumed_(consumed) {}

  void set_window(uint32_t queue_pair, uint32_t entries) { window_[queue_pair] = entries; }
  uint32_t returned(uint32_t queue_pair) const { return returned_[queue_pair]; }
  void give_back(uint32_t queue_pair, uint32_t entries) {
    returned_[queue_pair] += entries;
    note_due(queue_pair);
  }

  // Whether the sender should hear of it. Told at a quarter of the window, a sender that needs at most half
  // of the window for one message cannot starve: whatever is not outstanding and not told is less than a
  // quarter, and what is free but not given back yet (the receiver posts entries in runs) at most an eighth.
  bool is_update_due(uint32_t consumed) const {
    return is_window_due_ || consumed - advertised_consumed_ >= kMessageRing / 4;
  }

  bool is_anything_untold(uint32_t consumed) const {
    return consumed != advertised_consumed_ || returned_ != advertised_;
  }

  // For a grant: the counters of one queue pair, always the same one, so that a note makes up for all before
  // it. From here on they count as told.
  CreditNote take_note(uint32_t consumed, uint32_t queue_pair) {
    advertised_consumed_ = consumed;
    advertised_[queue_pair] = returned_[queue_pair];
    if (is_window_due_) {
      is_window_due_ = false;
      for (uint32_t q = 0; q < kMaxQueuePairs; ++q) note_due(q);
    }
    return CreditNote::make(consumed, queue_pair, returned_[queue_pair]);
  }

  // The line to send; from here on it counts as told.
  CreditLine take_update(uint32_t consumed) {
    CreditLine line{};
    for (uint32_t q = 0; q < kMaxQueuePairs; ++q) line.returned[q] = advertised_[q] = returned_[q];
    line.consumed = advertised_consumed_ = consumed;
    is_window_due_ = false;
    return line;
  }

 private:
  uint32_t count_untold(uint32_t queue_pair) const { return returned_[queue_pair] - advertised_[queue_pair]; }
  void note_due(uint32_t queue_pair) {
    const uint32_t untold = count_untold(queue_pair);
    is_window_due_ |= untold != 0 && untold * 4 >= window_[queue_pair];
  }

  std::array<uint32_t, kMaxQueuePairs> window_{}, returned_{}, advertised_{};
  uint32_t advertised_consumed_;
  bool is_window_due_ = false;  // of some queue pair
};

}  // namespace verbena::protocol
