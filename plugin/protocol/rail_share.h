// Divides a message among queue pairs so that all finish at the same time: for each queue pair, the
// outstanding bytes plus its share, divided by its rate, are equal ("water-filling"). No share is shorter
// than the minimum stripe. A short message uses one queue pair: the primary of the connection, whose caches,
// doorbell and worker are warm, unless another queue pair would finish clearly earlier.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "protocol/chunking.h"
#include "protocol/rail_rate.h"

namespace verbena::protocol {

class RailShare {
 public:
  using Speeds = std::array<uint32_t, kMaxQueuePairs>;

  // `speed_mbps` has the speed of the link that each queue pair can expect. If one is unknown (0), all count
  // as equal.
  void start(uint32_t queue_pairs, const Speeds& speed_mbps, uint32_t primary, uint64_t min_stripe_bytes) {
    queue_pairs_ = queue_pairs;
    primary_ = primary;
    min_stripe_bytes_ = divide_up(min_stripe_bytes, kDirectAlignBytes) * kDirectAlignBytes;
    two_stripes_bytes_ = 2 * min_stripe_bytes_;
    const bool all_known = std::all_of(speed_mbps.begin(), speed_mbps.begin() + queue_pairs,
                                       [](uint32_t speed) { return speed != 0; });
    for (uint32_t q = 0; q < queue_pairs; ++q)
      rates_[q].set_link((all_known ? speed_mbps[q] : kUnknownMbps) / kMbpsPerBytesPerNs);
  }

  uint32_t primary() const { return primary_; }
  void set_primary(uint32_t queue_pair) { primary_ = queue_pair; }
  // The queue pair has failed: none of its requests will complete.
  void forget_outstanding(uint32_t queue_pair) {
    outstanding_bytes_ -= rates_[queue_pair].outstanding_bytes();
    rates_[queue_pair].forget_outstanding();
  }
  const RailRate& rate(uint32_t queue_pair) const { return rates_[queue_pair]; }
  // Returns whether the message is too short for a second queue pair.
  bool is_short(uint64_t length_bytes) const { return length_bytes < two_stripes_bytes_; }
  // Returns whether a short message can use the primary queue pair without checking the others or the clock.
  bool is_for_primary(uint64_t length_bytes) const {
    return is_short(length_bytes) && at(primary_).is_done_soon(length_bytes);
  }
  // Returns whether completions, or their absence, should be measured, which needs the clock.
  bool is_measuring() const { return outstanding_bytes_ >= RailRate::kSampleBytes; }

  void note_posted(uint32_t queue_pair, uint64_t bytes, int64_t now_ns) {
    outstanding_bytes_ += bytes;
    at(queue_pair).note_posted(bytes, now_ns);
  }
  // A completion that came before its queue pair failed may be found after the queue pair was forgotten.
  void note_completed(uint32_t queue_pair, uint64_t bytes, int64_t now_ns) {
    if (bytes > rates_[queue_pair].outstanding_bytes()) return;
    outstanding_bytes_ -= bytes;
    rates_[queue_pair].note_completed(bytes, looked_ns_, now_ns);
  }
  void note_waiting(int64_t now_ns) {
    for (RailRate& rate : rates_) rate.note_waiting(now_ns);
  }
  // Call this after all completions of a poll at `now_ns` were passed.
  void note_looked(int64_t now_ns) { looked_ns_ = now_ns; }

  // Returns a share for each queue pair, in whole units, that together cover the message (Cut shortens the
  // last one). No share exceeds its `room`. If there is not enough space, the shares do not cover the
  // message.
  Shares split(uint64_t length_bytes, uint64_t unit_bytes, const Shares& room, int64_t now_ns) const {
    Filling filling{.message_bytes = length_bytes,
                    .length_bytes = std::max<uint64_t>(1, divide_up(length_bytes, unit_bytes)) * unit_bytes,
                    .unit_bytes = unit_bytes,
                    .now_ns = now_ns};
    for (uint32_t q = 0; q < queue_pairs_; ++q) {
      filling.rate[q] = rates_[q].estimate(min_stripe_bytes_, now_ns);
      filling.in_use[q] = room[q] >= std::min(filling.length_bytes, smallest_share(filling));
    }
    if (is_short(length_bytes)) {
      const uint32_t q = choose_one(filling);
      if (q < queue_pairs_) filling.shares[q] = filling.length_bytes;
    } else {
      fill(filling);
      probe(filling, room);
    }
    keep_to_room(filling, room);
    return filling.shares;
  }

 private:
  static constexpr double kMbpsPerBytesPerNs = 8000;
  static constexpr uint32_t kUnknownMbps = 100'000;
  static constexpr double kChangeNs = RailRate::kSoonNs;  // cost of using a queue pair that is not warm

  struct Filling {
    uint64_t message_bytes;  // and the same in whole units:
    uint64_t length_bytes, unit_bytes;
    int64_t now_ns;
    std::array<double, kMaxQueuePairs> rate{};
    std::array<bool, kMaxQueuePairs> in_use{};
    Shares shares{};
  };

  // For posts. With rates_[...] the compiler would compute the address again at many members.
  RailRate& at(uint32_t queue_pair) { return *(rates_.data() + queue_pair); }
  const RailRate& at(uint32_t queue_pair) const { return *(rates_.data() + queue_pair); }

  uint64_t round_down(const Filling& filling, double bytes) const {
    return bytes <= 0 ? 0 : static_cast<uint64_t>(bytes) / filling.unit_bytes * filling.unit_bytes;
  }
  uint64_t smallest_share(const Filling& filling) const {
    return divide_up(min_stripe_bytes_, filling.unit_bytes) * filling.unit_bytes;
  }

  // Returns the time that the whole message would take on this queue pair.
  double predict_ns(const Filling& filling, uint32_t q) const {
    return static_cast<double>(rates_[q].overdue_ns(filling.now_ns)) +
           static_cast<double>(rates_[q].outstanding_bytes() + filling.length_bytes) / filling.rate[q];
  }

  // Returns queue_pairs_ if no queue pair is in use.
  uint32_t choose_one(const Filling& filling) const {
    uint32_t best = queue_pairs_;
    double best_ns = 0;
    for (uint32_t i = 0; i < queue_pairs_; ++i) {
      const uint32_t q = (primary_ + i) % queue_pairs_;
      if (!filling.in_use[q]) continue;
      if (q == primary_ && rates_[q].is_probe_due(filling.length_bytes, filling.now_ns)) return q;
      const double finish_ns = predict_ns(filling, q);
      if (best != queue_pairs_ && finish_ns >= best_ns) continue;
      best = q;
      best_ns = finish_ns - (q == primary_ ? kChangeNs : 0);
    }
    return best;
  }

  // Removes queue pairs whose share would be too short, the shortest first, until all shares are long enough.
  void fill(Filling& filling) const {
    const uint64_t smallest = smallest_share(filling);
    while (true) {
      const double level_ns = find_level(filling);
      uint32_t count = 0, worst = 0, last = 0;
      uint64_t missing = filling.length_bytes;
      for (uint32_t i = 0; i < queue_pairs_; ++i) {
        const uint32_t q = (primary_ + i) % queue_pairs_;
        if (!filling.in_use[q]) continue;
        const double bytes = level_ns * filling.rate[q] - static_cast<double>(rates_[q].outstanding_bytes());
        filling.shares[q] = std::min(round_down(filling, bytes), missing);
        missing -= filling.shares[q];
        if (count == 0 || filling.shares[q] <= filling.shares[worst]) worst = q;
        last = std::max(last, q);
        ++count;
      }
      if (count == 0) return;
      if (count == 1 || filling.shares[worst] >= smallest) {
        filling.shares[last] += missing;
        return;
      }
      filling.shares[worst] = 0;
      filling.in_use[worst] = false;
    }
  }

  // Returns the time at which all queue pairs in use finish.
  double find_level(const Filling& filling) const {
    double bytes = static_cast<double>(filling.message_bytes), rate = 0;
    for (uint32_t q = 0; q < queue_pairs_; ++q) {
      if (!filling.in_use[q]) continue;
      bytes += static_cast<double>(rates_[q].outstanding_bytes());
      rate += filling.rate[q];
    }
    return rate == 0 ? 0 : bytes / rate;
  }

  // Gives a small share to a queue pair that gets nothing because it was slow.
  void probe(Filling& filling, const Shares& room) const {
    const uint64_t bytes =
        smallest_share(filling) + filling.unit_bytes;  // enough even at the end of a message
    const auto largest = std::max_element(filling.shares.begin(), filling.shares.end());
    if (*largest < 2 * bytes) return;
    for (uint32_t q = 0; q < queue_pairs_; ++q) {
      if (filling.shares[q] != 0 || room[q] < bytes || !rates_[q].is_probe_due(bytes, filling.now_ns))
        continue;
      *largest -= bytes;
      filling.shares[q] = bytes;
      return;
    }
  }

  // Moves the part of a share that does not fit to queue pairs with free space, the fastest first.
  void keep_to_room(Filling& filling, const Shares& room) const {
    uint64_t missing = filling.length_bytes;
    for (uint32_t q = 0; q < queue_pairs_; ++q) {
      filling.shares[q] = std::min(filling.shares[q], room[q]);
      missing -= filling.shares[q];
    }
    while (missing != 0) {
      uint32_t best = queue_pairs_;
      for (uint32_t i = 0; i < queue_pairs_; ++i) {
        const uint32_t q = (primary_ + i) % queue_pairs_;
        const bool has_room = filling.shares[q] < room[q];
        if (has_room && (best == queue_pairs_ || filling.rate[q] > filling.rate[best])) best = q;
      }
      if (best == queue_pairs_) return;
      const uint64_t more = std::min(missing, room[best] - filling.shares[best]);
      filling.shares[best] += more;
      missing -= more;
    }
  }

  std::array<RailRate, kMaxQueuePairs> rates_;
  uint32_t queue_pairs_ = 1, primary_ = 0;
  uint64_t min_stripe_bytes_ = 0, two_stripes_bytes_ = 0;
  uint64_t outstanding_bytes_ = 0;
  int64_t looked_ns_ = 0;
};

}  // namespace verbena::protocol
