// Ranks of a team as GPUs of one emulated world: heaps in the test's memory, each with the team's words
// first.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "verbena/symm_abi.h"

namespace verbena::device_test {

class Fleet {
 public:
  static constexpr uint64_t kDataBytes = 1 << 16;  // of each rank's heap, behind the words

  // Ranks from `in_reach` on cannot be reached by loads and stores. `more_bytes` is for workspaces.
  explicit Fleet(int32_t ranks, int32_t in_reach = INT32_MAX, uint64_t more_bytes = 0)
      : ranks_(static_cast<size_t>(ranks)), data_bytes_(kDataBytes + more_bytes) {
    for (size_t r = 0; r < ranks_.size(); ++r) make_memory(ranks_[r]);
    for (int32_t r = 0; r < ranks; ++r) make_context(r, in_reach < ranks ? in_reach : ranks);
  }

  int32_t size() const { return static_cast<int32_t>(ranks_.size()); }
  SymmContext& context(int32_t rank) { return at(rank).context; }
  // A rank's part of a workspace, behind the data, as the host lays it out; `index` counts those of this
  // shape.
  SymmWorkspace<> workspace(int32_t rank, uint64_t index, uint64_t blocks, uint64_t slot_bytes) {
    SymmWorkspace<> made{at(rank).context, {}};
    auto* word = reinterpret_cast<uint64_t*>(
        data(rank, kDataBytes + index * measure_workspace(size(), blocks, slot_bytes)));
    made.context.signals = word;
    made.context.remote_signals = word += kSymmSignals;
    made.context.arrivals = word += kSymmSignals;
    made.context.rounds = word += kSymmBarrierRows * ranks_.size();
    made.context.failure = word += kSymmBarrierRows;
    made.blocks.epochs = word += 1;
    made.blocks.slots = align(reinterpret_cast<char*>(word + blocks));
    made.blocks.slot_bytes = slot_bytes;
    made.blocks.count = blocks;
    return made;
  }
  // A rank's context of a team of these members, the rank among them, all in reach. Its words are those of a
  // workspace with one block and no slots; one rank's teams have different `index`.
  SymmContext team(int32_t rank, uint64_t index, const std::vector<int32_t>& members) {
    SymmContext made = workspace(rank, index, 1, 0).context;
    made.team_size = made.lsa_size = static_cast<int32_t>(members.size());
    made.lsa_mask = (uint64_t{1} << members.size()) - 1;
    made.more_deltas = nullptr;
    for (size_t i = 0; i < members.size(); ++i) {
      made.inline_deltas[i] = at(rank).deltas[static_cast<size_t>(members[i])];
      if (members[i] == rank) made.team_rank = static_cast<int32_t>(i);
    }
    return made;
  }
  static uint64_t measure_workspace(int32_t ranks, uint64_t blocks, uint64_t slot_bytes) {
    const auto size = static_cast<uint64_t>(ranks);
    const uint64_t words = 2 * kSymmSignals + kSymmBarrierRows * (size + 1) + 1 + blocks;
    return (8 * words + blocks * kSymmTurns * size * slot_bytes + kAlignment) / kAlignment * kAlignment +
           kAlignment;
  }

  // At the same offset of each rank's heap; a multiple of 128 bytes plus `offset_bytes`.
  template <typename T = uint8_t>
  T* data(int32_t rank, uint64_t offset_bytes = 0) {
    return reinterpret_cast<T*>(at(rank).data + offset_bytes);
  }

 private:
  struct Rank {
    std::vector<uint64_t> heap, rounds;
    std::vector<int64_t> deltas;
    uint8_t* data = nullptr;
    uint64_t begin = 0;
    SymmContext context{};
  };

  static constexpr uint64_t kAlignment = 128;

  template <typename T>
  static T* align(T* address) {
    return reinterpret_cast<T*>((reinterpret_cast<uint64_t>(address) + kAlignment - 1) / kAlignment *
                                kAlignment);
  }
  Rank& at(int32_t rank) { return ranks_[static_cast<size_t>(rank)]; }
  uint64_t count_words() const { return 2 * kSymmSignals + kSymmBarrierRows * ranks_.size() + 1; }

  void make_memory(Rank& rank) {
    rank.heap.resize(count_words() + 2 * kAlignment / 8 + data_bytes_ / 8);
    rank.rounds.resize(kSymmBarrierRows);
    rank.begin = reinterpret_cast<uint64_t>(align(rank.heap.data()));
    rank.data = align(reinterpret_cast<uint8_t*>(rank.begin + 8 * count_words()));
  }
  void make_context(int32_t r, int32_t in_reach) {
    Rank& rank = at(r);
    SymmContext& context = rank.context;
    context.type = kSymmVerbena;
    context.rank = context.team_rank = r;
    context.world_size = context.team_size = size();
    context.lsa_size = in_reach;
    context.has_remote = in_reach < size();
    for (int32_t peer = 0; peer < size(); ++peer) {
      const bool is_reached = peer == r || (peer < in_reach && r < in_reach);
      rank.deltas.push_back(is_reached ? static_cast<int64_t>(at(peer).begin - rank.begin) : kSymmOutOfReach);
      if (is_reached) context.lsa_mask |= uint64_t{1} << peer;
    }
    std::copy_n(rank.deltas.begin(), std::min(rank.deltas.size(), size_t{kSymmInlineDeltas}),
                context.inline_deltas);
    if (size() > kSymmInlineDeltas) context.more_deltas = rank.deltas.data();
    context.heap_begin = rank.begin;
    context.heap_end = reinterpret_cast<uint64_t>(rank.data) + data_bytes_;
    context.signals = reinterpret_cast<uint64_t*>(rank.begin);
    context.remote_signals = context.signals + kSymmSignals;
    context.arrivals = context.remote_signals + kSymmSignals;
    context.failure = context.arrivals + kSymmBarrierRows * ranks_.size();
    context.rounds = rank.rounds.data();
    context.timeout_ns = 1'000'000'000'000;
  }

  std::vector<Rank> ranks_;
  uint64_t data_bytes_;
};

}  // namespace verbena::device_test
