// Chooses the path of the next packet to a peer: the next one in turn that is not backed off or quarantined.
// A path whose packets come late is skipped a few times (backed off). A path that loses several packets in a
// row is quarantined, then tested with a single packet, and quarantined for twice the time if that packet is
// lost too. Pure.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>

#include "protocol/datagram/packet.h"
#include "protocol/sequence.h"

namespace verbena::protocol::datagram {

class PathTable {
 public:
  static constexpr uint32_t kNoPath = UINT32_MAX;

  // `paths` has a bit for each path, at least one. `start` is the first path, so that different peers do not
  // use the paths in the same order.
  PathTable(uint32_t paths, uint32_t start) : all_(paths), next_(static_cast<uint8_t>(start % kPaths)) {}

  uint32_t all() const { return all_; }

  // Chooses among the `allowed` paths (a bit each). Avoids `avoided` unless there is no other path. Returns
  // kNoPath if no path is allowed, or if all allowed paths are quarantined while others are not; it is then
  // better to wait for one of the others.
  uint32_t pick(uint32_t allowed, uint32_t avoided, Stamp now) {
    allowed &= all_;
    if (allowed == 0) return kNoPath;
    wake(now);
    uint32_t good = allowed & ~resting_ & ~tried_;
    if (good == 0) {
      if ((all_ & ~resting_ & ~tried_) != 0) return kNoPath;  // FAULT(full_rail_makes_other_paths_wait)
      good = allowed;                                         // all are quarantined, so each one is allowed
    }
    if (avoided < kPaths && (good & ~(1U << avoided)) != 0) good &= ~(1U << avoided);
    // Each skip is counted once, so a path is found after a limited number of rounds.
    for (;;) {
      const uint32_t ahead = std::rotr(good, static_cast<int>(next_));
      const uint32_t path = (next_ + static_cast<uint32_t>(std::countr_zero(ahead))) % kPaths;
      next_ = static_cast<uint8_t>((path + 1) % kPaths);
      Path& state = paths_[path];
      if (state.skips != 0) {
        --state.skips;
        continue;
      }
      if ((waking_ >> path & 1) != 0) {
        waking_ &= ~(1U << path);
        // FAULT(trial_is_many_packets)
        tried_ |= 1U << path;  // sends no second packet before the result of this one is known
      }
      return path;
    }
  }

  void note_late(uint32_t paths) {
    for (paths &= all_; paths != 0; paths &= paths - 1) {
      Path& path = paths_[static_cast<uint32_t>(std::countr_zero(paths))];
      path.skips = std::min<uint8_t>(static_cast<uint8_t>(path.skips + 1), kMostSkips);
    }
  }
  void note_delivered(uint32_t path) {
    loss_rate_ -= loss_rate_ >> kRateShift;
    Path& state = paths_[path];
    state.streak = 0;
    const uint32_t bit = 1U << path;
    if (((resting_ | tried_ | waking_) & bit) == 0) [[likely]]
      return;
    if ((tried_ & bit) != 0) state.backoff = 0;
    tried_ &= ~bit;
    resting_ &= ~bit;
    waking_ &= ~bit;
  }
  // Returns true if the path is quarantined from now on.
  bool note_lost(uint32_t path, Stamp now) {
    loss_rate_ += (kRateUnit - loss_rate_) >> kRateShift;
    Path& state = paths_[path];
    const uint32_t bit = 1U << path;
    if ((resting_ & bit) != 0) return false;  // sent before the quarantine
    ++state.streak;
    if ((tried_ & bit) == 0 && state.streak < find_fatal_streak()) return false;  // FAULT(no_path_ever_rests)
    rest(path, now);
    double_rest(path);
    return true;
  }
  // The result of a packet will never be known: without an answer it is sent again on another path. If it was
  // the test packet of the path, the path is quarantined for the same time as before, and tested again.
  [[gnu::noinline]] void note_unknown(uint32_t path, Stamp now) {
    if ((tried_ >> path & 1) != 0) rest(path, now);  // FAULT(trial_without_an_outcome_doubles_the_next_rest)
  }
  // A port is down, or up again: quarantines all its paths at once.
  void rest_all(uint32_t paths, Stamp now) {
    for (paths &= all_ & ~resting_; paths != 0; paths &= paths - 1) {
      const auto path = static_cast<uint32_t>(std::countr_zero(paths));
      rest(path, now);
      double_rest(path);
    }
  }
  void wake_all(uint32_t paths) {
    resting_ &= ~paths;
    tried_ &= ~paths;
    waking_ &= ~paths;
    for (paths &= all_; paths != 0; paths &= paths - 1)
      paths_[static_cast<uint32_t>(std::countr_zero(paths))] = {};
  }
  uint32_t resting() const { return resting_ | tried_; }
  uint32_t tried() const { return tried_; }

 private:
  struct Path {
    uint8_t skips = 0, streak = 0, backoff = 0;
    Stamp wakes_at = 0;
  };
  static constexpr uint8_t kMostSkips = 15, kMostDoublings = 8;
  static constexpr Stamp kFirstRest = 1'000'000 / kStampNs;
  static constexpr uint32_t kRateUnit = 1 << 16, kRateShift = 8;

  void rest(uint32_t path, Stamp now) {
    Path& state = paths_[path];
    resting_ |= 1U << path;
    tried_ &= ~(1U << path);
    waking_ &= ~(1U << path);
    state.streak = 0;
    state.wakes_at = now + (kFirstRest << state.backoff);
    next_wake_ =
        resting_ == 1U << path || is_before(state.wakes_at, next_wake_) ? state.wakes_at : next_wake_;
  }
  void double_rest(uint32_t path) {
    uint8_t& backoff = paths_[path].backoff;
    backoff = std::min<uint8_t>(static_cast<uint8_t>(backoff + 1), kMostDoublings);
  }
  void wake(Stamp now) {
    if (resting_ == 0 || is_before(now, next_wake_)) [[likely]]
      return;
    Stamp next = now + (UINT32_MAX >> 2);
    for (uint32_t left = resting_; left != 0; left &= left - 1) {
      const auto path = static_cast<uint32_t>(std::countr_zero(left));
      if (is_before(now, paths_[path].wakes_at)) {
        if (is_before(paths_[path].wakes_at, next)) next = paths_[path].wakes_at;
      } else {
        resting_ &= ~(1U << path);
        waking_ |= 1U << path;
      }
    }
    next_wake_ = next;
  }
  // Returns how many losses in a row quarantine a path. If many packets are lost everywhere, two in a row say
  // little about a path, so the number is chosen such that chance causes it about once in a thousand packets.
  uint32_t find_fatal_streak() const {
    if (loss_rate_ < kRateUnit / 32) return 2;
    if (loss_rate_ < kRateUnit / 10) return 3;
    if (loss_rate_ < kRateUnit / 5) return 5;
    return loss_rate_ < kRateUnit / 2 ? 10 : 30;
  }

  uint32_t all_;
  uint32_t resting_ = 0;  // bits: quarantined paths
  uint32_t waking_ = 0;   // quarantine is over; gets one test packet
  uint32_t tried_ = 0;    // the test packet is in flight
  Stamp next_wake_ = 0;
  uint32_t loss_rate_ = 0;  // of all paths, smoothed
  uint8_t next_;
  std::array<Path, kPaths> paths_{};
};

}  // namespace verbena::protocol::datagram
