#include "device/symm/membership.h"

#include <algorithm>
#include <bit>

#include "base/log.h"

namespace verbena::symm {
namespace {

TeamPlace find_place(const std::vector<Membership>& all, uint32_t own_rank) {
  const Membership& mine = all[own_rank];
  TeamPlace place;
  uint64_t taken = 0;
  for (uint32_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].parent != mine.parent || all[rank].color != mine.color) continue;
    place.ranks.push_back(rank);
    taken |= all[rank].taken;
  }
  std::stable_sort(place.ranks.begin(), place.ranks.end(),
                   [&](uint32_t left, uint32_t right) { return all[left].key < all[right].key; });
  const auto own = std::find(place.ranks.begin(), place.ranks.end(), own_rank);
  place.rank = static_cast<uint32_t>(own - place.ranks.begin());
  place.index = static_cast<uint32_t>(std::countr_one(taken));
  return place;
}

base::Outcome check_place(const TeamPlace& place, uint32_t count_words, std::span<const uint32_t> expected) {
  if (place.index >= count_words) {
    return base::fail(base::Status::kInvalidUsage,
                      "symm: the maximum number of teams is reached (VERBENA_SYMM_TEAMS %u). Free a team, or "
                      "raise VERBENA_SYMM_TEAMS",
                      count_words);
  }
  if (!expected.empty() &&
      !std::equal(expected.begin(), expected.end(), place.ranks.begin(), place.ranks.end())) {
    return base::fail(base::Status::kInvalidArgument,
                      "symm: the members of a new team of %zu ranks passed different lists of ranks",
                      expected.size());
  }
  return {};
}

}  // namespace

base::Result<std::optional<TeamPlace>> agree_on_team(bootstrap::Bootstrap& bootstrap, const Membership& mine,
                                                     uint32_t count_words,
                                                     std::span<const uint32_t> expected) {
  const auto all = bootstrap.gather(mine);
  if (!all) return all.error();
  std::optional<TeamPlace> place;
  base::Outcome state;
  if (mine.color >= 0) {
    place = find_place(*all, bootstrap.rank());
    state = check_place(*place, count_words, expected);
  }
  if (auto agreed = bootstrap.all_agree(state, base::last_failure()); !agreed) return agreed.error();
  return place;
}

}  // namespace verbena::symm
