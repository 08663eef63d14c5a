// Determines the ranks of a context that are "in reach" of this rank. A rank is in reach if this rank can map
// its memory, or if another library has mapped its memory. Kernels access this memory by loads and stores.
// Ranks that are in reach of each other have the same ranks in reach.
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

  // Finds the ranks in reach. Collective. If any rank of a host cannot map the memory of another rank of the
  // host, each rank of this host has only itself in reach. This is an error if `path` is kLsa.
  static base::Result<Reach> find(bootstrap::Bootstrap& bootstrap, base::MemoryOwner owner,
                                  base::SymmPath path);
  // Creates a Reach from deltas. A delta is the difference in bytes between a rank's addresses and this
  // rank's addresses: 0 for this rank, and kSymmOutOfReach if the rank's memory is not mapped. Collective.
  // Returns an error if two ranks in reach of each other do not have the same ranks in reach.
  static base::Result<Reach> from_deltas(bootstrap::Bootstrap& bootstrap, std::span<const int64_t> deltas);

  bool has_peers() const { return count_slots > 1; }
  bool reaches(uint32_t rank) const { return slot_of[rank] != kOutOfReach; }
  // Returns whether all ranks are in reach of each other.
  bool is_whole_world() const { return count_slots == slot_of.size(); }
  // Returns the lowest rank in reach, which identifies the group.
  uint32_t first_rank() const;

  bootstrap::HostDomain domain;  // empty if another library maps the memory
  // For each rank, its slot in this rank's heap, or kOutOfReach. Slots are in rank order.
  std::vector<int32_t> slot_of;
  uint32_t count_slots = 1;
  uint32_t own_slot = 0;
};

}  // namespace verbena::symm
