// The memory behind a window: this rank's piece and those of the ranks in reach, mapped at one offset of
// their slots. Nothing in a borrowed heap.
#pragma once

#include <vector>

#include "bootstrap/bootstrap.h"
#include "bootstrap/host_domain.h"
#include "device/symm/heap.h"
#include "device/symm/reach.h"

namespace verbena::symm {

class WindowMemory {
 public:
  // Collective over the bootstrap: every rank gives a piece of the same length for the same offset. The last
  // step, mapping the peers' pieces, is each rank's own: the caller asks whether all have succeeded.
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
