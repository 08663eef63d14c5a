// Credits. A credit is a receive entry that the sender may use. The receiver keeps `window` entries posted
// for each queue pair of a connection. The sender takes one credit for every chunk with an immediate, and
// gets it back when the receiver has posted the entry again. As long as both ends keep to this, a sender
// never finds the receive queue empty.
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

  // A failed queue pair has no credits, whatever the receiver still returns.
  void stop(uint32_t queue_pair) {
    window_[queue_pair] = 0;
    taken_[queue_pair] = returned_[queue_pair];
  }
  // Starts the credits of the queue pair that replaces a failed one. The receiver has returned `returned`
  // credits and holds `held`. Lost credits are not counted.
  void restart(uint32_t queue_pair, uint32_t entries, uint32_t returned, uint32_t held) {
    window_[queue_pair] = entries;
    returned_[queue_pair] = returned;
    taken_[queue_pair] = returned + held;  // FAULT(held_pages_do_not_count_at_a_revival)
  }

  uint32_t returned(uint32_t queue_pair) const { return returned_[queue_pair]; }

  // Returns false if the peer claims to have returned more credits than were taken: it is faulty, or its
  // memory was overwritten.
  bool absorb(uint32_t queue_pair, uint32_t returned) {
    const uint32_t newer = take_newer(returned_[queue_pair], returned);
    // Ignored if the queue pair has stopped.
    if (is_before(taken_[queue_pair], newer)) return window_[queue_pair] == 0;
    returned_[queue_pair] = newer;
    return true;
  }

 private:
  std::array<uint32_t, kMaxQueuePairs> window_{}, taken_{}, returned_{};
};

class ReceiverCredits {
 public:
  // `consumed` is the number of the first message.
  explicit ReceiverCredits(uint32_t consumed = 0) : advertised_consumed_(consumed) {}

  void set_window(uint32_t queue_pair, uint32_t entries) { window_[queue_pair] = entries; }
  uint32_t returned(uint32_t queue_pair) const { return returned_[queue_pair]; }
  void give_back(uint32_t queue_pair, uint32_t entries) {
    returned_[queue_pair] += entries;
    note_due(queue_pair);
  }

  // Returns whether the sender must be notified. An update is due at a quarter of the window. A sender that
  // needs at most half of the window for one message then never starves: fewer than a quarter of the entries
  // are free without the sender knowing, and at most an eighth are free but not posted again (the receiver
  // posts entries in batches).
  bool is_update_due(uint32_t consumed) const {
    return due_ != 0 || consumed - advertised_consumed_ >= kMessageRing / 4;
  }
  // An update is due, because an earlier one may be lost.
  void demand_update() { due_ |= kLost; }

  bool is_anything_untold(uint32_t consumed) const {
    return consumed != advertised_consumed_ || returned_ != advertised_;
  }

  // Returns the credits for a grant: the counters of one queue pair, always the same one, so that a later
  // note replaces all earlier notes. The counters then count as sent.
  CreditNote take_note(uint32_t consumed, uint32_t queue_pair) {
    advertised_consumed_ = consumed;
    advertised_[queue_pair] = returned_[queue_pair];
    if ((due_ & kWindow) != 0) {
      due_ &= kLost;
      for (uint32_t q = 0; q < kMaxQueuePairs; ++q) note_due(q);
    }
    return CreditNote::make(consumed, queue_pair, returned_[queue_pair]);
  }

  // Returns the line to send, which then counts as sent.
  CreditLine take_update(uint32_t consumed) {
    CreditLine line{};
    for (uint32_t q = 0; q < kMaxQueuePairs; ++q) line.returned[q] = advertised_[q] = returned_[q];
    line.consumed = advertised_consumed_ = consumed;
    due_ = 0;
    return line;
  }

 private:
  uint32_t count_untold(uint32_t queue_pair) const { return returned_[queue_pair] - advertised_[queue_pair]; }
  void note_due(uint32_t queue_pair) {
    const uint32_t untold = count_untold(queue_pair);
    if (untold != 0 && untold * 4 >= window_[queue_pair]) due_ |= kWindow;
  }

  std::array<uint32_t, kMaxQueuePairs> window_{}, returned_{}, advertised_{};
  uint32_t advertised_consumed_;
  // Why an update is due: a quarter of the window of some queue pair; demand_update(). One byte, because
  // every test reads it.
  static constexpr uint8_t kWindow = 1, kLost = 2;
  uint8_t due_ = 0;
};

}  // namespace verbena::protocol
