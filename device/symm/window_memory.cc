#include "device/symm/window_memory.h"

#include <utility>

#include "base/log.h"
#include "bootstrap/host_domain.h"

namespace verbena::symm {

base::Result<WindowMemory> WindowMemory::make(bootstrap::Bootstrap& bootstrap, const Reach& reach,
                                              const Heap& heap, uint64_t offset,
                                              const base::MemoryPiece& own) {
  WindowMemory memory;
  if (heap.is_borrowed()) return memory;
  base::FileDescriptor shared;
  base::Outcome state;
  if (auto mapped = base::MappedPiece::map(own, heap.owner(), heap.begin() + offset)) {
    memory.own_ = std::move(*mapped);
  } else {
    state = mapped.error();
  }
  if (state.is_ok() && reach.has_peers()) {
    if (auto descriptor = own.share()) {
      shared = std::move(*descriptor);
    } else {
      state = descriptor.error();
    }
  }
  if (auto agreed = bootstrap.all_agree(state, base::last_failure()); !agreed) return agreed.error();
  const int given = shared ? shared.get() : bootstrap::kNoDescriptor;
  const auto descriptors = bootstrap::share_descriptor(bootstrap, reach.domain, given);
  if (!descriptors) return descriptors.error();
  if (auto done = memory.map_peers(reach, heap, offset, *descriptors); !done) return done.error();
  return memory;
}

base::Outcome WindowMemory::map_peers(const Reach& reach, const Heap& heap, uint64_t offset,
                                      const std::vector<base::FileDescriptor>& descriptors) {
  const auto& ranks = reach.domain.ranks();
  for (size_t i = 0; i < ranks.size(); ++i) {
    const int32_t slot = reach.slot_of[ranks[i]];
    if (!descriptors[i] || slot == Reach::kOutOfReach) continue;
    const auto piece = base::MemoryPiece::open(heap.owner(), descriptors[i].get(), own_.length_bytes());
    if (!piece) return piece.error();
    auto mapped =
        base::MappedPiece::map(*piece, heap.owner(), heap.slot(static_cast<uint32_t>(slot)) + offset);
    if (!mapped) return mapped.error();
    peers_.push_back(std::move(*mapped));
  }
  return {};
}

}  // namespace verbena::symm
