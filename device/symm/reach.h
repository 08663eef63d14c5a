// Which ranks of a context loads and stores reach from this one: those of its host whose memory it can map,
// or those to whom another library has mapped it. They reach each other, and nobody else.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/parameters.h"
#include "base/virtual_memory.h"
#include "bootstrap/bootstrap.h"
#include "bootstrap/host_domain.h"

namespace verbena::symm {

struct Reach {
  static constexpr int32_t kOutOfReach = -1;

  // Collective. A host where one rank cannot map another's memory counts as ranks on their own, or as an
  // error where `path` is kLsa.
  static base::Result<Reach> find(bootstrap::Bootstrap& bootstrap, base::MemoryOwner owner,
                                  base::SymmPath path);
  // Collective. From an address of ours to that of each rank, in bytes, or kSymmOutOfReach; 0 for our own. An
  // error where ranks in reach of each other do not reach the same ranks.
  static base::Result<Reach> from_deltas(bootstrap::Bootstrap& bootstrap, std::span<const int64_t> deltas);

  bool has_peers() const { return count_slots > 1; }
  bool reaches(uint32_t rank) const { return slot_of[rank] != kOutOfReach; }
  // Every rank reaches every other one.
  bool is_whole_world() const { return count_slots == slot_of.size(); }
  // The lowest in reach: the same for all of them, another one for all others.
  uint32_t first_rank() const;

  bootstrap::HostDomain domain;  // empty: memory is mapped by others
  std::vector<int32_t> slot_of;  // of each rank: its slot in our heap, in the order of ranks; or kOutOfReach
  uint32_t count_slots = 1;
  uint32_t own_slot = 0;
};

}  // namespace verbena::symm
