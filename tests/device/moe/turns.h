// The rule by which dispatches and combines reuse their slots without a barrier (layout.cuh), as a model of
// a few ranks. Each rank runs the same kernels, one after the other. A kernel's stores land in any order,
// all of them before the kernel ends: packets in the peers' slots, and the zeros that empty the rank's own
// slots. A packet's slot is the one that the kernels compute, by MoeShape. The header of a dispatch is an
// entry with its call's number, which all blocks read and nobody empties. A dispatch that groups rows by
// expert sends such an entry for each token to all ranks; the rank that the token goes to reads it.
//
// Rules: no packet lands in a slot that is not empty, no rank takes a packet or believes a note of another
// call, and no rank waits for ever. A rank may time out. Then the others learn of it, give up or end, and all
// later calls do nothing until all ranks have reset.
#pragma once

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "device/moe/exploration.h"
#include "verbena/device/moe/layout.cuh"

namespace verbena::device_test {

using device::MoeKind;

constexpr uint32_t kTurnRanks = 3, kTurnBlocks = 2, kTurnSlots = 40;

// What an exchange must not do.
struct TurnFaults {
  bool has_one_copy = false;
  bool sends_no_header_without_rows = false;  // in a combine, whose ranks know who has rows for them
  bool ends_before_its_stores = false;        // kernels, which then order nothing
  bool counts_calls_of_its_grid = false;      // not of all blocks
  bool believes_any_note = false;
  bool goes_on_after_failure = false;
  bool resets_alone = false;  // without waiting until all ranks' kernels have ended
  bool reset_keeps_epochs = false;
  bool reset_keeps_notes = false;
};

// A kernel of all ranks, or a reset.
struct TurnStep {
  enum class What : uint8_t { kBoth, kSend, kReceive, kReset };
  What what = What::kReset;
  MoeKind kind = MoeKind::kDispatch;
  uint32_t call = 0;                         // the same in both phases, other than every other call's
  std::array<uint8_t, kTurnRanks> routes{};  // of each rank's token: a bit for each rank that it goes to
  uint32_t blocks = 1;
  bool is_grouped = false;
  uint8_t living = 7;  // ranks that take part, a bit each

  bool sends() const { return what == What::kBoth || what == What::kSend; }
  bool receives() const { return what == What::kBoth || what == What::kReceive; }
};

class TurnModel {
 public:
  struct Store {
    uint8_t to, what, slot, call, epoch;
    uint64_t bits() const {
      return uint64_t{to} | uint64_t{what} << 8 | uint64_t{slot} << 16 | uint64_t{call} << 24 |
             uint64_t{epoch} << 32;
    }
  };
  enum : uint8_t { kPacket, kNote, kEmpty, kFailure };
  struct Rank {
    uint8_t step = 0, is_running = 0, has_failed = 0, has_reset = 0;
    uint8_t given_up = 0;  // a bit for each block
    std::array<std::array<uint8_t, kTurnBlocks>, 2> epochs{};
    uint32_t awaited = 0;  // a bit for each packet of the call
    uint8_t count_stores = 0;
    std::array<Store, 24> stores{};                                     // in order of their bits
    std::array<uint8_t, kTurnSlots> packets{}, notes{}, note_epochs{};  // calls; 0: empty
  };
  struct State {
    std::array<Rank, kTurnRanks> ranks;
    uint8_t timeouts = 0;

    StateKey key() const {
      StateKey key;
      for (const Rank& rank : ranks) {
        key.add(uint64_t{rank.step} | uint64_t{rank.is_running} << 8 | uint64_t{rank.has_failed} << 9 |
                uint64_t{rank.has_reset} << 10 | uint64_t{rank.given_up} << 16 |
                uint64_t{rank.awaited} << 32);
        key.add(uint64_t{rank.epochs[0][0]} | uint64_t{rank.epochs[0][1]} << 8 |
                uint64_t{rank.epochs[1][0]} << 16 | uint64_t{rank.epochs[1][1]} << 24 |
                uint64_t{timeouts} << 32);
        for (uint8_t i = 0; i < rank.count_stores; ++i) key.add(rank.stores[i].bits());
        for (const auto* const words : {&rank.packets, &rank.notes, &rank.note_epochs}) {
          for (size_t i = 0; i < kTurnSlots; i += 8) {
            uint64_t eight = 0;
            for (size_t k = 0; k < 8; ++k) eight |= uint64_t{(*words)[i + k]} << 8 * k;
            key.add(eight);
          }
        }
      }
      return key;
    }
  };

  TurnModel(uint32_t ranks, std::vector<TurnStep> steps, const TurnFaults& faults = {},
            bool has_notes = false, uint8_t max_timeouts = 0)
      : count_(ranks),
        steps_(std::move(steps)),
        faults_(faults),
        has_notes_(has_notes),
        max_timeouts_(max_timeouts) {
    shape_.ranks = ranks;
    shape_.max_tokens = shape_.local_experts = 1;
    shape_.top_k = shape_.rows_of_token = 2;
    shape_.max_blocks = kTurnBlocks;
    shape_.combine_packets = 1;
    for (const TurnStep& step : steps_) lists_.push_back(list_packets(step));
  }
  bool fits() const { return shape_.packets() <= kTurnSlots; }

  template <typename GoOn>
  std::string follow(const State& state, const GoOn& go_on) const {
    std::string wrong;
    size_t ways = 0;
    bool is_end = true;
    const auto take = [&](uint8_t rank, uint32_t action, uint32_t at, const auto& change) {
      const uint32_t step = uint32_t{rank} | action << 8 | at << 16 | uint32_t{state.ranks[rank].step} << 24;
      State next = state;
      if (const std::string found = change(next, next.ranks[rank]); !found.empty())
        wrong = found + "; before it:\n  " + describe(step);
      ++ways;
      go_on(next, step);
    };
    for (uint8_t r = 0; r < count_; ++r) {
      const Rank& rank = state.ranks[r];
      is_end = is_end && rank.step == steps_.size();
      for (uint8_t i = 0; i < rank.count_stores; ++i)
        take(r, kLands, i, [&](State& next, Rank& mine) { return land(next, mine, i); });
      if (rank.step == steps_.size()) continue;
      const TurnStep& step = steps_[rank.step];
      if (step.what == TurnStep::What::kReset) {
        follow_reset(state, r, take);
      } else if (rank.is_running == 0) {
        take(r, kBegins, 0, [&](State&, Rank& mine) { return begin(mine, r); });
      } else {
        follow_kernel(state, r, take);
      }
      if (!wrong.empty()) return wrong;
    }
    if (ways != 0) return "";
    if (!is_end) return "a rank waits for ever";
    for (const Rank& rank : state.ranks)
      if (std::any_of(rank.packets.begin(), rank.packets.end(), [](uint8_t call) { return call != 0; }))
        return "a packet is left";
    return "";
  }
  std::string describe(uint32_t step) const {
    static constexpr const char* kActions[] = {"a store lands",           "begins", "takes packet",
                                               "times out, block",        "ends",   "is reset",
                                               "goes on behind the reset"};
    return "rank " + std::to_string(step & 0xff) + ", kernel " + std::to_string(step >> 24) + ": " +
           kActions[step >> 8 & 0xff] + " " + std::to_string(step >> 16 & 0xff);
  }

 private:
  enum : uint32_t { kLands, kBegins, kTakes, kGivesUp, kEnds, kResets, kGoesOn };
  struct Packet {
    uint8_t from, to, block;  // that receives it; a header of a dispatch is there for each block
    bool is_header;
    uint8_t place;          // of a combined row
    bool is_place = false;  // the entry of a token in a dispatch that groups rows
    bool is_awaited = true;
  };

  std::vector<Packet> list_packets(const TurnStep& step) const {
    std::vector<Packet> list;
    if (step.what == TurnStep::What::kReset) return list;
    const auto last =
        static_cast<uint8_t>(step.blocks - 1);  // receives the rows, which the first block sends
    for (uint8_t from = 0; from < count_; ++from) {
      for (uint8_t to = 0; to < count_; ++to) {
        if (from == to || (step.living >> from & step.living >> to & 1) == 0) continue;
        const bool is_dispatch = step.kind == MoeKind::kDispatch;
        const uint8_t routes = step.routes[is_dispatch ? from : to], other = is_dispatch ? to : from;
        const bool has_row = (routes >> other & 1) != 0;
        const uint32_t headers = is_dispatch                                        ? step.blocks
                                 : has_row || !faults_.sends_no_header_without_rows ? 1
                                                                                    : 0;
        for (uint8_t block = 0; block < headers; ++block) list.push_back({from, to, block, true, 0});
        const auto place = static_cast<uint8_t>(__builtin_popcount(routes & ((1U << other) - 1)));
        if (has_row) list.push_back({from, to, last, false, place});
        if (step.is_grouped) list.push_back({from, to, last, false, place, true, has_row});
      }
    }
    return list;
  }
  uint8_t find_slot(const TurnStep& step, const Packet& packet, uint64_t epoch) const {
    if (faults_.has_one_copy) epoch *= device::kMoeCopies;
    if (step.kind == MoeKind::kDispatch)
      return static_cast<uint8_t>(packet.is_header  ? shape_.find_header(epoch, packet.from)
                                  : packet.is_place ? shape_.find_places(epoch, packet.from, 0)
                                                    : shape_.find_row(epoch, packet.from, 0));
    return static_cast<uint8_t>(packet.is_header ? shape_.find_combine_header(epoch, packet.from)
                                                 : shape_.find_combine_row(epoch, 0, packet.place));
  }
  // An entry is like a note without a packet.
  static bool is_an_entry(const TurnStep& step, const Packet& packet) {
    return packet.is_place || (packet.is_header && step.kind == MoeKind::kDispatch);
  }
  static uint8_t find_epoch(const TurnStep& step, const Rank& rank, uint8_t block) {
    return static_cast<uint8_t>(rank.epochs[static_cast<uint32_t>(step.kind)][block] + 1);
  }
  static void push(Rank& rank, const Store& store) {
    auto* const end = rank.stores.begin() + rank.count_stores++;
    auto* const at =
        std::find_if(rank.stores.begin(), end, [&](const Store& one) { return store.bits() < one.bits(); });
    std::move_backward(at, end, end + 1);
    *at = store;
  }

  std::string land(State& next, Rank& mine, uint8_t number) const {
    const Store store = mine.stores[number];
    std::move(mine.stores.begin() + number + 1, mine.stores.begin() + mine.count_stores,
              mine.stores.begin() + number);
    mine.stores[--mine.count_stores] = {};
    Rank& there = next.ranks[store.to];
    switch (store.what) {
      case kPacket:
        if (there.packets[store.slot] != 0)
          return "a packet of call " + std::to_string(store.call) + " lands on one of call " +
                 std::to_string(there.packets[store.slot]) + " at rank " + std::to_string(store.to);
        there.packets[store.slot] = store.call;
        break;
      case kNote:
        there.notes[store.slot] = store.call;
        there.note_epochs[store.slot] = store.epoch;
        break;
      case kEmpty:
        there.packets[store.slot] = 0;
        break;
      default:
        there.has_failed = 1;
    }
    return "";
  }
  std::string begin(Rank& mine, uint8_t rank) const {
    const TurnStep& step = steps_[mine.step];
    mine.is_running = 1;
    const bool is_left_out = (step.living >> rank & 1) == 0;
    if (is_left_out || (mine.has_failed != 0 && !faults_.goes_on_after_failure)) {
      mine.given_up = static_cast<uint8_t>((1U << step.blocks) - 1);
      return "";
    }
    const std::vector<Packet>& list = lists_[mine.step];
    for (size_t i = 0; i < list.size(); ++i) {
      const Packet& packet = list[i];
      if (packet.to == rank && step.receives() && packet.is_awaited) mine.awaited |= 1U << i;
      if (packet.from != rank || !step.sends()) continue;
      const bool is_entry = is_an_entry(step, packet);
      if (is_entry && packet.block != step.blocks - 1) continue;  // sent once, by the last block
      const uint8_t epoch = find_epoch(step, mine, packet.is_header ? packet.block : 0);
      const uint8_t slot = find_slot(step, packet, epoch), call = static_cast<uint8_t>(step.call);
      if (!is_entry) push(mine, {packet.to, kPacket, slot, call, 0});
      if (is_entry || has_notes_) push(mine, {packet.to, kNote, slot, call, epoch});
    }
    return "";
  }
  template <typename Take>
  void follow_kernel(const State& state, uint8_t r, const Take& take) const {
    const Rank& rank = state.ranks[r];
    const TurnStep& step = steps_[rank.step];
    const std::vector<Packet>& list = lists_[rank.step];
    uint32_t of_block[kTurnBlocks] = {}, headers[kTurnBlocks] = {};  // that are awaited
    for (size_t i = 0; i < list.size(); ++i) {
      if ((rank.awaited >> i & 1) == 0) continue;
      of_block[list[i].block] |= 1U << i;
      if (list[i].is_header) headers[list[i].block] |= 1U << i;
    }
    for (uint32_t i = 0; i < list.size(); ++i) {
      if ((rank.awaited >> i & 1) == 0) continue;
      const Packet& packet = list[i];
      // The headers say which rows come.
      if (step.kind == MoeKind::kDispatch && !packet.is_header && headers[packet.block] != 0) continue;
      const uint8_t epoch = find_epoch(step, rank, packet.block), slot = find_slot(step, packet, epoch);
      const bool is_entry = is_an_entry(step, packet), has_note = is_entry || has_notes_;
      if (!is_entry && rank.packets[slot] == 0) continue;
      if (has_note && rank.note_epochs[slot] != epoch &&
          !(faults_.believes_any_note && rank.notes[slot] != 0))
        continue;
      take(r, kTakes, i, [&](State&, Rank& mine) -> std::string {
        mine.awaited &= ~(1U << i);
        if (!is_entry) push(mine, {r, kEmpty, slot, 0, 0});
        if (!is_entry && mine.packets[slot] != step.call)
          return "a packet of call " + std::to_string(mine.packets[slot]) + " is taken by call " +
                 std::to_string(step.call);
        if (has_note && mine.notes[slot] != step.call)
          return "a note of call " + std::to_string(mine.notes[slot]) + " is believed by call " +
                 std::to_string(step.call);
        return "";
      });
    }
    for (uint32_t block = 0; block < step.blocks; ++block) {
      if (of_block[block] == 0) continue;
      if (rank.has_failed == 0 && (state.timeouts == max_timeouts_ || is_after_reset(rank.step))) continue;
      take(r, kGivesUp, block, [&](State& next, Rank& mine) -> std::string {
        mine.awaited &= ~of_block[block];
        mine.given_up = static_cast<uint8_t>(mine.given_up | 1U << block);
        if (mine.has_failed != 0) return "";
        ++next.timeouts;
        mine.has_failed = 1;
        for (uint8_t peer = 0; peer < count_; ++peer)
          if (peer != r) push(mine, {peer, kFailure, 0, 0, 0});
        return "";
      });
    }
    if (rank.awaited != 0 || (rank.count_stores != 0 && !faults_.ends_before_its_stores)) return;
    take(r, kEnds, 0, [&](State&, Rank& mine) -> std::string {
      auto& epochs = mine.epochs[static_cast<uint32_t>(step.kind)];
      const auto before = epochs;
      for (uint32_t block = 0; block < kTurnBlocks && step.receives(); ++block) {
        const uint32_t counted_by = block % step.blocks;
        if (faults_.counts_calls_of_its_grid && block != counted_by) continue;
        if ((mine.given_up >> counted_by & 1) == 0)
          epochs[block] = static_cast<uint8_t>(before[counted_by] + 1);
      }
      mine.given_up = mine.is_running = 0;
      ++mine.step;
      return "";
    });
  }
  template <typename Take>
  void follow_reset(const State& state, uint8_t r, const Take& take) const {
    const uint8_t step = state.ranks[r].step;
    bool have_come = true, are_reset = true;
    for (uint8_t i = 0; i < count_; ++i) {
      const Rank& other = state.ranks[i];
      have_come = have_come && other.step >= step;
      are_reset = are_reset && (other.step > step || other.has_reset != 0);
    }
    if (state.ranks[r].has_reset != 0) {
      if (are_reset || faults_.resets_alone)
        take(r, kGoesOn, 0, [](State&, Rank& mine) -> std::string {
          mine.has_reset = 0;
          ++mine.step;
          return "";
        });
    } else if (have_come || faults_.resets_alone) {
      take(r, kResets, 0, [&](State&, Rank& mine) -> std::string {
        mine.packets = {};
        if (!faults_.reset_keeps_notes) mine.notes = mine.note_epochs = {};
        if (!faults_.reset_keeps_epochs) mine.epochs = {};
        mine.has_failed = 0;
        mine.has_reset = 1;
        return "";
      });
    }
  }
  bool is_after_reset(uint8_t step) const {
    return std::any_of(steps_.begin(), steps_.begin() + step,
                       [](const TurnStep& one) { return one.what == TurnStep::What::kReset; });
  }

  const uint32_t count_;
  const std::vector<TurnStep> steps_;
  const TurnFaults faults_;
  const bool has_notes_;
  const uint8_t max_timeouts_;
  device::MoeShape shape_{};
  std::vector<std::vector<Packet>> lists_;  // of each step
};

}  // namespace verbena::device_test
