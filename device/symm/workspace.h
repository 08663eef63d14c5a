// A workspace of a team, for one stream. The workspace consists of memory in the heap with separate words
// (signals and barriers), epochs and slots, and of a SymmWorkspace with which kernels use this memory.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "device/symm/team.h"

namespace verbena::symm {

class Context;
struct ContextWindow;

// The size of a workspace, equal on all ranks.
struct WorkspaceShape {
  uint64_t slots_bytes = 0;  // maximum bytes of all slots together
  uint32_t blocks = 0;

  // Returns the length of a workspace's window in bytes, for teams of up to `count_members` members.
  uint64_t measure(uint64_t count_members) const;
  // Returns the size of one slot in bytes in such a team, or 0 if there is no space or slots_bytes is 0.
  uint64_t slot_bytes(uint64_t count_members) const;
};

// A workspace. The context owns it.
struct Workspace {
  Context* context = nullptr;
  ContextWindow* window = nullptr;
  WorkspaceShape shape;
  std::unique_ptr<Team> team;  // the members with the workspace's words; null if this rank is not a member

  uint64_t slot_bytes() const { return team == nullptr ? 0 : shape.slot_bytes(team->ranks().size()); }
};

// Creates the team of a workspace, in memory of the calling thread's current GPU. `window_offset` is the
// offset of the workspace's window in the heap. The window's memory must be zero.
base::Result<std::unique_ptr<Team>> make_workspace_team(const TeamPlace& place, const WorkspaceShape& shape,
                                                        const std::string& name, const Reach& reach,
                                                        const Heap& heap, uint64_t window_offset,
                                                        const SymmContext& common);

}  // namespace verbena::symm
