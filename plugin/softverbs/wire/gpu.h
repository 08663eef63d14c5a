#pragma once

#include <cstdint>

#include "softverbs/gpu_lane.h"
#include "softverbs/operation.h"

namespace verbena::softverbs::wire {

// Both wait for the GPU, and so belong to a loop's own thread when `memory` has any of a GPU. False when CUDA
// refuses.
bool store_memory(GpuLanes& lanes, const Memory& memory, const uint8_t* from);
// The application may have unmapped what it is still sending.
void load_host(const iovec& piece, uint8_t* to);
bool copy_from_gpu(GpuLanes& lanes, const Memory& memory, uint64_t offset, uint8_t* to, uint64_t bytes);

}  // namespace verbena::softverbs::wire
