// Who is in a new team, and which of the words that the context keeps for teams it gets.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "bootstrap/bootstrap.h"

namespace verbena::symm {

inline constexpr int64_t kNoColor = -1;

// What a rank says when teams are made; all ranks of the world say something.
struct Membership {
  int64_t parent = 0;        // ranks with different ones do not meet
  int64_t color = kNoColor;  // negative: in no team
  int64_t key = 0;           // the order of ranks; equal ones by their rank in the world
  uint64_t taken = 0;        // bit i: the i-th words are in use here
};

struct TeamPlace {
  std::vector<uint32_t> ranks;  // of the world, in the order of the team
  uint32_t rank = 0;            // this one's in the team
  uint32_t index = 0;           // of the words: the lowest that all members have left
};

// Collective over the world. Empty for a rank in no team. An error, for all, where a team finds no words left
// of `count_words`, or where `expected` is not what comes out (an empty one says nothing).
base::Result<std::optional<TeamPlace>> agree_on_team(bootstrap::Bootstrap& bootstrap, const Membership& mine,
                                                     uint32_t count_words,
                                                     std::span<const uint32_t> expected = {});

}  // namespace verbena::symm
