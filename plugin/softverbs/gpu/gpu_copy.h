// Copies of an operation's GPU memory: through lanes if this process's copier can map both sides, otherwise
// in chunks through pinned memory (staged).
#pragma once

#include <functional>

#include "softverbs/engine/operation.h"
#include "softverbs/gpu/gpu_lane.h"

namespace verbena::softverbs {

// Begins an operation's copies if the copier can access all its memory. op.lane, op.lane_first and
// op.lane_last then show when the copies are complete. If the function returns false, no copy was begun, and
// copy_staged() must be used. Only workers may call it.
bool start_gpu_copies(Operation& op);
LaneState look_at_lane(Operation& op);

// Returns whether the owner can store a write's words together with the atomic change after it, so that
// neither the write nor the change has to wait for a copy.
bool can_be_carried(const Operation& write, const Operation& change);
// Allocates memory for the words. Returns false while no memory is free. Only workers may call it.
bool reserve_carried(Operation& write);
// Begins to load the words into that memory.
void load_carried(Operation& write);
// Returns whether the words are loaded.
LaneState look_at_carried(Operation& write);
// Frees the memory of the words.
void drop_carried(Operation& write);

// Copies in chunks through pinned staging memory, and waits for the end. Calls `once_begun` when the copy of
// the first chunk has begun. Only workers may call it.
StepOutcome copy_staged(Operation& op, const std::function<void()>& once_begun = {});
// Copies the operation's local bytes, at most kStageBytes, to `to`. Returns false if the copier fails. With
// GPU memory, only workers may call it.
bool read_local(const Operation& op, uint8_t* to);

// Returns the lane for an operation of this rail; nullptr if this process uses no GPU on the rail.
GpuLane* choose_lane(const Operation& op);

// Finds the area of a lane's copier that contains a piece of this process's memory, or of the operation's
// remote memory. Returns false if the copier cannot access it.
bool address_own(GpuLane& lane, uint64_t address, uint32_t gpu, AreaAddress& found);
bool address_remote(const Operation& op, GpuLane* lane, uint64_t address, uint32_t gpu, AreaAddress& found);

}  // namespace verbena::softverbs
