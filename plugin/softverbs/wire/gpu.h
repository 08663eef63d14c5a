// GPU memory in connections to other hosts: the bytes of frames are copied from and to GPU memory through
// lanes of the loop.
#pragma once

#include <cstdint>

#include "softverbs/engine/operation.h"
#include "softverbs/gpu/gpu_lane.h"

namespace verbena::softverbs::wire {

class Loop;

// A loop's access to GPU memory. The lanes copy through their own memory, so that a copy that does not end in
// time cannot damage other memory. Only the loop's own thread uses it, while this thread holds the loop's
// turn (loop.h); other threads call only prepare().
class GpuPath {
 public:
  // Opens the lane of a device. May block. Returns false if the copier fails.
  bool prepare(uint32_t device);
  // Copies, and waits for the GPU. Returns false if the copier fails or takes too long; after that, this
  // object can no longer access GPU memory.
  bool write(uint32_t gpu, uint64_t to, const uint8_t* from, uint64_t bytes);
  bool read(uint32_t gpu, uint64_t from, uint8_t* to, uint64_t bytes);

 private:
  bool copy_and_wait(uint32_t gpu, uint64_t at, uint64_t bytes, const uint8_t* from, uint8_t* to);

  GpuLanes lanes_;
  bool is_lost_ = false;
};

// Returns false if not all bytes could be stored. Only the loop's own thread may store to GPU memory; for
// other threads the function returns false.
bool store_memory(Loop& loop, const Memory& memory, const uint8_t* from);
bool load_memory(Loop& loop, const Memory& memory, uint64_t offset, uint8_t* to, uint64_t bytes);
// Returns false if the application has unmapped memory that is still being sent.
bool load_host(const iovec& piece, uint8_t* to);

}  // namespace verbena::softverbs::wire
