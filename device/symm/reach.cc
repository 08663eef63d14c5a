#include "device/symm/reach.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "device/symm/window_memory.h"
#include "verbena/symm_abi.h"

namespace verbena::symm {
namespace {

void take_host(Reach& reach) {
  const auto& ranks = reach.domain.ranks();
  for (size_t i = 0; i < ranks.size(); ++i) reach.slot_of[ranks[i]] = static_cast<int32_t>(i);
  reach.count_slots = static_cast<uint32_t>(ranks.size());
  reach.own_slot = reach.domain.local_rank();
}

void take_alone(Reach& reach, uint32_t rank) {
  std::fill(reach.slot_of.begin(), reach.slot_of.end(), Reach::kOutOfReach);
  reach.slot_of[rank] = 0;
  reach.count_slots = 1;
  reach.own_slot = 0;
}

// Tests whether the memory of every peer can be mapped, because only a trial shows what links, drivers and
// containers allow. Collective.
base::Result<bool> try_mapping(bootstrap::Bootstrap& bootstrap, const Reach& reach, base::MemoryOwner owner) {
  const auto granularity = base::measure_granularity(owner);
  auto heap = granularity ? Heap::reserve(owner, *granularity, reach.count_slots, reach.own_slot)
                          : base::Result<Heap>(granularity.error());
  auto piece =
      heap ? base::MemoryPiece::allocate(owner, *granularity) : base::Result<base::MemoryPiece>(heap.error());
  const base::Outcome ready = piece ? base::Outcome() : base::Outcome(piece.error());
  if (auto agreed = bootstrap.all_agree(ready, base::last_failure()); !agreed) return agreed.error();
  const auto memory = WindowMemory::make(bootstrap, reach, *heap, 0, *piece);
  // No rank unmaps its memory before all ranks have tried.
  const auto could = bootstrap.gather(static_cast<uint8_t>(memory ? 1 : 0));
  if (!could) return could.error();
  const auto& ranks = reach.domain.ranks();
  return std::all_of(ranks.begin(), ranks.end(), [&](uint32_t rank) { return (*could)[rank] != 0; });
}

}  // namespace

base::Result<Reach> Reach::find(bootstrap::Bootstrap& bootstrap, base::MemoryOwner owner,
                                base::SymmPath path) {
  auto domain = bootstrap::HostDomain::form(bootstrap);
  if (!domain) return domain.error();
  Reach reach{std::move(*domain), std::vector<int32_t>(bootstrap.count_ranks(), kOutOfReach)};
  take_alone(reach, bootstrap.rank());
  if (path != base::SymmPath::kRdma) {
    take_host(reach);
    const auto works = try_mapping(bootstrap, reach, owner);
    if (!works) return works.error();
    if (!*works) {
      base::log_info(
          "symm: rank %u: not all ranks of this host can map each other's memory, so the ranks use RDMA "
          "between each other",
          bootstrap.rank());
      take_alone(reach, bootstrap.rank());
    }
  }
  if (reach.is_whole_world() || path != base::SymmPath::kLsa) return reach;
  return base::fail(base::Status::kInvalidUsage,
                    "symm: rank %u of %u: VERBENA_SYMM_PATH is lsa, but the memory of some ranks cannot be "
                    "mapped. Use auto or rdma",
                    bootstrap.rank(), bootstrap.count_ranks());
}

base::Result<Reach> Reach::from_deltas(bootstrap::Bootstrap& bootstrap, std::span<const int64_t> deltas) {
  Reach reach;
  reach.count_slots = 0;
  for (const int64_t delta : deltas)
    reach.slot_of.push_back(delta == kSymmOutOfReach ? kOutOfReach
                                                     : static_cast<int32_t>(reach.count_slots++));
  reach.own_slot = static_cast<uint32_t>(reach.slot_of[bootstrap.rank()]);
  const auto firsts = bootstrap.gather(reach.first_rank());
  if (!firsts) return firsts.error();
  // All ranks with the same first rank must have the same ranks in reach. Otherwise one of these ranks
  // reports the error here.
  base::Outcome state;
  for (uint32_t rank = 0; rank < firsts->size() && state.is_ok(); ++rank) {
    if (reach.reaches(rank) == ((*firsts)[rank] == reach.first_rank())) continue;
    state = base::fail(base::Status::kInvalidArgument,
                       "symm: rank %u %s rank %u by loads and stores, unlike other ranks of its group. All "
                       "ranks of a group must be able to access each other's memory, and must not be able to "
                       "access the memory of ranks outside the group",
                       bootstrap.rank(), reach.reaches(rank) ? "reaches" : "does not reach", rank);
  }
  if (auto agreed = bootstrap.all_agree(state, base::last_failure()); !agreed) return agreed.error();
  return reach;
}

uint32_t Reach::first_rank() const {
  const auto first =
      std::find_if(slot_of.begin(), slot_of.end(), [](int32_t slot) { return slot != kOutOfReach; });
  return static_cast<uint32_t>(first - slot_of.begin());
}

}  // namespace verbena::symm
