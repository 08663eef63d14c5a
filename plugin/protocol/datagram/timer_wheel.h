// Timers of many entries: three levels of 64 slots, of 8 us, 524 us and 34 ms. An entry is filed once, and
// filed again only if it is wanted earlier. An entry that is wanted later than it is filed finds this out
// when its slot comes. So a deadline that changes with every packet costs only a comparison.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>

namespace verbena::protocol::datagram {

inline constexpr int64_t kWheelTickNs = 8192;
inline constexpr int64_t kNeverNs = INT64_MAX;
inline constexpr uint32_t kNobody = UINT32_MAX;

// The part of an entry.
struct TimerLink {
  int64_t filed_ns = kNeverNs;  // when its slot comes
  uint32_t next = kNobody, previous = kNobody;
  uint8_t slot = 0;
};

class TimerWheel {
 public:
  TimerWheel() { slots_.fill(kNobody); }

  // `links(id)` returns TimerLink&. If `at_ns` is in the past, the entry is due at the next tick.
  template <typename Links>
  void file(uint32_t id, int64_t at_ns, Links&& links) {
    TimerLink& link = links(id);
    if (at_ns >= link.filed_ns) return;
    if (link.filed_ns != kNeverNs) remove(id, links);
    insert(id, at_ns, links);
  }
  template <typename Links>
  void remove(uint32_t id, Links&& links) {
    TimerLink& link = links(id);
    if (link.filed_ns == kNeverNs) return;
    if (link.next != kNobody) links(link.next).previous = link.previous;
    if (link.previous != kNobody) {
      links(link.previous).next = link.next;
    } else {
      slots_[link.slot] = link.next;
      if (link.next == kNobody && link.slot != kDue)
        filled_[link.slot / kSlots] &= ~(uint64_t{1} << link.slot % kSlots);
    }
    link.filed_ns = kNeverNs;
  }

  // Calls `visit(id, at_ns)` for each entry that is due, after removing it from the wheel. `at_ns` is the
  // time for which it was filed. `visit` may file and remove any entry.
  template <typename Links, typename Visit>
  void advance(int64_t now_ns, Links&& links, Visit&& visit) {
    const int64_t tick = now_ns / kWheelTickNs;
    if (tick <= seen_) return;
    for (uint32_t level = 0; level < kLevels; ++level) {
      for (uint64_t left = find_passed(level, tick) & filled_[level]; left != 0; left &= left - 1)
        set_aside(level * kSlots + static_cast<uint32_t>(std::countr_zero(left)), links);
    }
    seen_ = tick;
    while (slots_[kDue] != kNobody) {
      const uint32_t id = slots_[kDue];
      const int64_t at_ns = links(id).filed_ns;
      remove(id, links);
      if (at_ns <= now_ns) {
        visit(id, at_ns);
      } else {
        // FAULT(timers_of_a_coarse_level_are_forgotten)
        insert(id, at_ns, links);  // moves it from a coarse level to a finer one
      }
    }
  }

  // Returns the earliest time at which advance() may have work; kNeverNs if there is none.
  int64_t find_next_ns() const { return is_empty() ? kNeverNs : find_next_tick() * kWheelTickNs; }
  bool is_empty() const { return (filled_[0] | filled_[1] | filled_[2]) == 0; }

 private:
  static constexpr uint32_t kLevels = 3, kSlots = 64, kSlotBits = 6;
  static constexpr uint32_t kDue = kLevels * kSlots;  // the list of entries whose slot has come

  static int64_t scale(int64_t tick, uint32_t level) { return tick >> (level * kSlotBits); }

  template <typename Links>
  void insert(uint32_t id, int64_t at_ns, Links&& links) {
    const int64_t tick = std::max(seen_ + 1, (at_ns + kWheelTickNs - 1) / kWheelTickNs);
    uint32_t level = 0;
    while (level + 1 < kLevels && scale(tick, level) - scale(seen_, level) >= kSlots) ++level;
    int64_t turn = scale(tick, level);
    turn = std::min(turn, scale(seen_, level) + kSlots - 1);  // farther away: moved when the time is nearer
    const uint32_t slot = level * kSlots + static_cast<uint32_t>(turn % kSlots);
    TimerLink& link = links(id);
    link = {.filed_ns = at_ns, .next = slots_[slot], .previous = kNobody, .slot = static_cast<uint8_t>(slot)};
    if (slots_[slot] != kNobody) links(slots_[slot]).previous = id;
    slots_[slot] = id;
    filled_[level] |= uint64_t{1} << slot % kSlots;
  }
  // Returns a bit for each slot of a level that has come since the last call.
  uint64_t find_passed(uint32_t level, int64_t tick) const {
    const int64_t first = scale(seen_, level) + 1, last = scale(tick, level);
    if (last < first) return 0;
    if (last - first >= kSlots - 1) return ~uint64_t{0};
    const auto count = static_cast<uint32_t>(last - first + 1);
    return std::rotl((uint64_t{1} << count) - 1, static_cast<int>(first % kSlots));
  }
  int64_t find_next_tick() const {
    int64_t next = INT64_MAX;
    for (uint32_t level = 0; level < kLevels; ++level) {
      if (filled_[level] == 0) continue;
      const int64_t now = scale(seen_, level);
      const uint64_t ahead = std::rotr(filled_[level], static_cast<int>((now + 1) % kSlots));
      const int64_t turn = now + 1 + std::countr_zero(ahead);
      next = std::min(next, turn << (level * kSlotBits));
    }
    return next;
  }
  // Moves the whole slot to the list of entries that are due.
  template <typename Links>
  void set_aside(uint32_t slot, Links&& links) {
    uint32_t last = slots_[slot];
    for (uint32_t id = last; id != kNobody; id = links(id).next) {
      links(id).slot = kDue;
      last = id;
    }
    links(last).next = slots_[kDue];
    if (slots_[kDue] != kNobody) links(slots_[kDue]).previous = last;
    slots_[kDue] = slots_[slot];
    slots_[slot] = kNobody;
    filled_[slot / kSlots] &= ~(uint64_t{1} << slot % kSlots);
  }

  std::array<uint32_t, kLevels * kSlots + 1> slots_;
  std::array<uint64_t, kLevels> filled_{};
  int64_t seen_ = 0;  // tick of the last call
};

}  // namespace verbena::protocol::datagram
