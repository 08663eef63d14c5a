// A workspace: memory in the heap for one stream or purpose of a team, with words, epochs and slots of its
// own, and what kernels are told of it (SymmWorkspace).
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "device/symm/team.h"

namespace verbena::symm {

class Context;
struct ContextWindow;

// Equal on all ranks.
struct WorkspaceShape {
  uint64_t slots_bytes = 0;  // of all slots together, at most
  uint32_t blocks = 0;

  // Of a window that serves teams of up to so many members.
  uint64_t measure(uint64_t count_members) const;
  // Of one slot in such a team; 0: there is no room, or none was asked for.
  uint64_t slot_bytes(uint64_t count_members) const;
};

// Owned by its context.
struct Workspace {
  Context* context = nullptr;
  ContextWindow* window = nullptr;
  WorkspaceShape shape;
  std::unique_ptr<Team> team;  // its members with the workspace's words; null: this rank is none of them

  uint64_t slot_bytes() const { return team == nullptr ? 0 : shape.slot_bytes(team->ranks().size()); }
};

// `window_offset` is of the window in the heap; its memory is zero. In memory of the calling thread's current
// GPU.
base::Result<std::unique_ptr<Team>> make_workspace_team(const TeamPlace& place, const WorkspaceShape& shape,
                                                        const std::string& name, const Reach& reach,
                                                        const Heap& heap, uint64_t window_offset,
                                                        const SymmContext& common);

}  // namespace verbena::symm
