// Determines the members of a new team, and which of the context's sets of words (signals and barriers) the
// new team uses.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "bootstrap/bootstrap.h"

namespace verbena::symm {

inline constexpr int64_t kNoColor = -1;

// A rank's part of the agreement on new teams. All ranks of the world take part.
struct Membership {
  int64_t parent = 0;        // ranks with different parents form different teams
  int64_t color = kNoColor;  // negative if this rank joins no team
  int64_t key = 0;           // the order of ranks; ranks with equal keys are ordered by world rank
  uint64_t taken = 0;        // bit i is set if this rank already uses the i-th set of words
};

struct TeamPlace {
  std::vector<uint32_t> ranks;  // world ranks, in team order
  uint32_t rank = 0;            // this rank's number in the team
  uint32_t index = 0;           // index of the set of words: the lowest index that is free on all members
};

// Forms the teams. Collective over the world. Returns nothing on a rank that joins no team. Returns an error
// on all ranks if none of the `count_words` sets of words is free on all members of a team, or if `expected`
// is not empty and differs from the team's ranks.
base::Result<std::optional<TeamPlace>> agree_on_team(bootstrap::Bootstrap& bootstrap, const Membership& mine,
                                                     uint32_t count_words,
                                                     std::span<const uint32_t> expected = {});

}  // namespace verbena::symm
