// How an operation of the engine uses a GPU's memory: through lanes if this process's copier can map
// both ends, else in chunks through pinned memory (staged).
#pragma once

#include <functional>

#include "softverbs/engine/operation.h"
#include "softverbs/gpu/gpu_lane.h"

namespace verbena::softverbs {

// Puts an operation's copies on their way when all of its memory can be addressed from here; op.lane and
// op.lane_ticket then tell when they are done. False: nothing was begun, copy_staged() can do it. Workers
// only.
bool start_gpu_copies(Operation& op);
LaneState look_at_lane(Operation& op);

// Whether the owner can store a write's words together with the change behind it, so that nobody waits for a
// copy.
bool can_be_carried(const Operation& write, const Operation& change);
// Takes memory for them; false while there is none. Workers only.
bool reserve_carried(Operation& write);
// Begins to load them there.
void load_carried(Operation& write);
// Whether the words are loaded.
LaneState look_at_carried(Operation& write);
// Gives the memory of the words back.
void drop_carried(Operation& write);

// Copies through staging memory in pinned chunks, to the end; `once_begun` is called when the first chunk is
// on its way. Workers only.
StepOutcome copy_staged(Operation& op, const std::function<void()>& once_begun = {});
// The operation's local bytes, of a GPU's memory too, at `to`. False when the copier refuses. At most
// kStageBytes; with memory of a GPU: workers only.
bool read_local(const Operation& op, uint8_t* to);

// The lane for an operation of this rail; nullptr when this process uses no GPU there.
GpuLane* choose_lane(const Operation& op);

// Finds a piece of this process's memory, or of the operation's remote memory, among the areas of a lane's
// copier. Returns false if the copier cannot reach it.
bool address_own(GpuLane& lane, uint64_t address, uint32_t gpu, AreaAddress& found);
bool address_remote(const Operation& op, GpuLane* lane, uint64_t address, uint32_t gpu, AreaAddress& found);

}  // namespace verbena::softverbs
