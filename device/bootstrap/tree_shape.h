// Which rank speaks with which: rank 0 is the root, and everybody else has one parent. Up to 65 ranks it is a
// star; 1,024 are two steps deep. Pure arithmetic.
#pragma once

#include <algorithm>
#include <cstdint>

namespace verbena::bootstrap {

// Connections that one process holds for it, its limit of open files in mind.
inline constexpr uint32_t kFanOutRanks = 64;

struct TreeShape {
  uint32_t count_ranks = 1;
  uint32_t fan_out = kFanOutRanks;

  // Of any rank but 0.
  uint32_t parent_of(uint32_t rank) const { return (rank - 1) / fan_out; }
  uint32_t first_child_of(uint32_t rank) const {
    return static_cast<uint32_t>(std::min<uint64_t>(uint64_t{rank} * fan_out + 1, count_ranks));
  }
  uint32_t count_children(uint32_t rank) const {
    return static_cast<uint32_t>(std::min<uint64_t>(uint64_t{rank} * fan_out + 1 + fan_out, count_ranks)) -
           first_child_of(rank);
  }
  uint32_t depth_of(uint32_t rank) const {
    uint32_t depth = 0;
    for (; rank != 0; rank = parent_of(rank)) ++depth;
    return depth;
  }
  // Whether `rank` is `ancestor` or lies below it.
  bool is_within(uint32_t rank, uint32_t ancestor) const {
    while (rank > ancestor) rank = parent_of(rank);
    return rank == ancestor;
  }
  // The child of `from` that is `rank` or leads to it; `rank` lies below `from`.
  uint32_t child_towards(uint32_t from, uint32_t rank) const {
    while (parent_of(rank) != from) rank = parent_of(rank);
    return rank;
  }
  uint32_t count_within(uint32_t ancestor) const {
    uint32_t count = 0;
    for (uint32_t rank = ancestor; rank < count_ranks; ++rank) count += is_within(rank, ancestor) ? 1 : 0;
    return count;
  }
};

}  // namespace verbena::bootstrap
