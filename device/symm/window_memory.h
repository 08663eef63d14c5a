// The memory of a window: this rank's memory and the memory of the mapped ranks, at the same offset of every
// slot. Windows of a borrowed heap have no WindowMemory.
#pragma once

#include <vector>

#include "bootstrap/bootstrap.h"
#include "bootstrap/host_domain.h"
#include "device/symm/heap.h"
#include "device/symm/reach.h"

namespace verbena::symm {

class WindowMemory {
 public:
  // Maps the memory. Collective over the bootstrap: every rank passes memory of the same length for the same
  // offset. The last step, mapping the peers' memory, is not collective, so the caller must check whether it
  // succeeded on all ranks.
  static base::Result<WindowMemory> make(bootstrap::Bootstrap& bootstrap, const Reach& reach,
                                         const Heap& heap, uint64_t offset, const base::MemoryPiece& own);

  const base::MappedPiece& own() const { return own_; }

 private:
  base::Outcome map_peers(const Reach& reach, const Heap& heap, uint64_t offset,
                          const std::vector<base::FileDescriptor>& descriptors);

  base::MappedPiece own_;
  std::vector<base::MappedPiece> peers_;
};

}  // namespace verbena::symm
