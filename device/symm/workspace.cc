#include "device/symm/workspace.h"

#include <cstring>
#include <utility>

namespace verbena::symm {
namespace {

constexpr uint64_t round_up(uint64_t value) {
  return (value + kSymmSlotUnit - 1) / kSymmSlotUnit * kSymmSlotUnit;
}

// The offsets of the parts of a workspace's window, which are words, epochs and slots.
struct WorkspacePlan {
  WorkspacePlan(const WorkspaceShape& shape, uint64_t count_members)
      : epochs(round_up(measure_team_words(static_cast<uint32_t>(count_members)))),
        slots(epochs + round_up(shape.blocks * sizeof(uint64_t))),
        end(slots + shape.slots_bytes) {}

  uint64_t epochs, slots, end;
};

}  // namespace

uint64_t WorkspaceShape::measure(uint64_t count_members) const {
  return WorkspacePlan(*this, count_members).end;
}

uint64_t WorkspaceShape::slot_bytes(uint64_t count_members) const {
  return slots_bytes / (blocks * kSymmTurns * count_members) / kSymmSlotUnit * kSymmSlotUnit;
}

base::Result<std::unique_ptr<Team>> make_workspace_team(const TeamPlace& place, const WorkspaceShape& shape,
                                                        const std::string& name, const Reach& reach,
                                                        const Heap& heap, uint64_t window_offset,
                                                        const SymmContext& common) {
  const WorkspacePlan plan(shape, place.ranks.size());
  char* const begin = reinterpret_cast<char*>(heap.begin()) + window_offset;
  const SymmBlocks blocks{.epochs = reinterpret_cast<uint64_t*>(begin + plan.epochs),
                          .slots = begin + plan.slots,
                          .slot_bytes = shape.slot_bytes(place.ranks.size()),
                          .count = shape.blocks};
  TeamParts parts{.name = name, .words = window_offset, .behind = std::vector<std::byte>(sizeof(blocks))};
  std::memcpy(parts.behind.data(), &blocks, sizeof(blocks));
  return Team::make(place, std::move(parts), reach, heap, common);
}

}  // namespace verbena::symm
