// Records which packets of one direction between two peers have arrived. A packet keeps its number (PSN) when
// it is retransmitted. The sender sends only packets within kSpan of the oldest packet that may not have
// arrived, so a ring of bits is sufficient at both ends.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>

#include "protocol/datagram/packet.h"
#include "protocol/sequence.h"

namespace verbena::protocol::datagram {

// A bit for each packet within kSpan. The span is one word shorter than the ring, so that no word has bits of
// both ends of the span.
class PacketBits {
 public:
  static constexpr uint32_t kRing = 2048;
  static_assert(kSpan + 64 <= kRing);

  bool has(uint32_t psn) const { return (word(psn) >> psn % 64 & 1) != 0; }
  void set(uint32_t psn) { word(psn) |= uint64_t{1} << psn % 64; }
  void clear(uint32_t psn) { word(psn) &= ~(uint64_t{1} << psn % 64); }
  uint64_t& word(uint32_t psn) { return words_[psn / 64 % words_.size()]; }
  uint64_t word(uint32_t psn) const { return words_[psn / 64 % words_.size()]; }

 private:
  std::array<uint64_t, kRing / 64> words_{};
};

class ReceiveWindow {
 public:
  enum class Arrival : uint8_t { kNew, kDuplicate, kBeyond };

  // All packets before this number have arrived.
  uint32_t cumulative() const { return cumulative_; }
  uint32_t top() const { return top_; }  // no packet from this number on has arrived
  uint16_t duplicates() const { return duplicates_; }
  void count_duplicate() { ++duplicates_; }

  Arrival judge(uint32_t psn) const {
    const int32_t ahead = count_between(cumulative_, psn);
    if (ahead < 0) return Arrival::kDuplicate;
    if (ahead >= static_cast<int32_t>(kSpan)) return Arrival::kBeyond;
    return bits_.has(psn) ? Arrival::kDuplicate : Arrival::kNew;  // FAULT(packet_counts_twice)
  }
  // The packet must be new.
  void record(uint32_t psn) {
    if (is_before(top_, psn + 1)) top_ = psn + 1;
    bits_.set(psn);
    if (psn == cumulative_) advance();
    if (count_between(psn, top_) <= static_cast<int32_t>(kSlicePackets - 64)) [[likely]]
      return;
    note_old(psn, psn);
  }
  // Returns whether more packets have arrived than the last acknowledgement could report.
  bool has_untold() const { return has_old_; }

  // Chooses the packets that the next acknowledgement reports: in turn, the newest ones, and older ones that
  // have arrived recently because they were retransmitted. If there are none of the latter, all packets in
  // turn.
  uint32_t choose_slice() {
    const uint32_t first = cumulative_ / 64 * 64, newest = (top_ - 1) / 64 * 64 - (kSlicePackets - 64);
    if (count_between(first, newest) <= 0) {
      has_old_ = false;
      told_ = top_;
      return first;
    }
    // More packets have arrived between two acknowledgements than one acknowledgement can report.
    if (is_before(told_, newest)) note_old(is_before(told_, first) ? first : told_, newest - 1);
    told_ = top_;
    is_turn_of_old_ = !is_turn_of_old_;
    if (!is_turn_of_old_) return newest;  // FAULT(only_the_newest_packets_are_told_of)
    if (has_old_) {
      old_slice_ = old_first_ / 64 * 64;
      old_first_ = old_slice_ + kSlicePackets;
      has_old_ = !is_before(old_last_, old_first_);
      if (count_between(first, old_slice_) >= 0) return old_slice_;
    }
    old_slice_ += kSlicePackets;
    if (count_between(first, old_slice_) < 0 || count_between(old_slice_, newest) < 0) old_slice_ = first;
    return old_slice_;
  }
  void read_slice(uint32_t base, std::array<uint64_t, kSlicePackets / 64>& slice) const {
    for (uint32_t i = 0; i < slice.size(); ++i) {
      const uint32_t psn = base + i * 64;
      const bool is_live = count_between(psn, top_) > 0 && count_between(cumulative_, psn + 63) >= 0;
      slice[i] = is_live ? bits_.word(psn) : 0;
    }
  }

 private:
  void note_old(uint32_t first, uint32_t last) {
    if (!has_old_) {
      has_old_ = true;
      old_first_ = first;
      old_last_ = last;
    }
    if (is_before(first, old_first_)) old_first_ = first;
    if (is_before(old_last_, last)) old_last_ = last;
  }
  void advance() {
    while (true) {
      const uint64_t rest = bits_.word(cumulative_) >> cumulative_ % 64;
      const auto run = std::min(static_cast<uint32_t>(std::countr_one(rest)), 64 - cumulative_ % 64);
      if (run == 0) return;
      const uint64_t mask = run == 64 ? ~uint64_t{0} : ((uint64_t{1} << run) - 1) << cumulative_ % 64;
      bits_.word(cumulative_) &= ~mask;
      cumulative_ += run;
    }
  }

  uint32_t cumulative_ = 0, top_ = 0, old_slice_ = 0;
  uint32_t told_ = 0;                      // `top` at the last acknowledgement
  uint32_t old_first_ = 0, old_last_ = 0;  // the range that no acknowledgement reports, if has_old_
  uint16_t duplicates_ = 0;
  bool is_turn_of_old_ = false, has_old_ = false;
  PacketBits bits_;  // bits before cumulative_ are 0
};

// Records which eager packets have arrived. They may find no page for a long time, but must not block other
// packets.
class EagerWindow {
 public:
  uint32_t cumulative() const { return cumulative_; }
  uint32_t bits() const { return bits_; }

  ReceiveWindow::Arrival judge(uint32_t number) const {
    const int32_t ahead = count_between(cumulative_, number);
    if (ahead < 0) return ReceiveWindow::Arrival::kDuplicate;
    if (ahead >= static_cast<int32_t>(kEagerSpan)) return ReceiveWindow::Arrival::kBeyond;
    // FAULT(eager_packet_counts_twice)
    return (bits_ >> ahead & 1) != 0 ? ReceiveWindow::Arrival::kDuplicate : ReceiveWindow::Arrival::kNew;
  }
  void record(uint32_t number) {
    bits_ |= 1U << (number - cumulative_);
    const auto run = static_cast<uint32_t>(std::countr_one(bits_));
    bits_ = run == 32 ? 0 : bits_ >> run;
    cumulative_ += run;
  }

 private:
  uint32_t cumulative_ = 0, bits_ = 0;
};

}  // namespace verbena::protocol::datagram
