// GPU memory on the wire: bytes of frames go from and to it through lanes of the loop.
#pragma once

#include <cstdint>

#include "softverbs/engine/operation.h"
#include "softverbs/gpu/gpu_lane.h"

namespace verbena::softverbs::wire {

class Loop;

// A loop's access to GPU memory: lanes, which copy through memory of their own, so that a copy that does not
// end in time can damage nothing else. Used by the loop's own thread with the turn; other threads only call
// prepare().
class GpuPath {
 public:
  // Opens the lane of a device. May block. False if the copier refuses.
  bool prepare(uint32_t device);
  // Waits for the GPU. False if the copier refuses, or takes too long; this path is then closed for ever.
  bool write(uint32_t gpu, uint64_t to, const uint8_t* from, uint64_t bytes);
  bool read(uint32_t gpu, uint64_t from, uint8_t* to, uint64_t bytes);

 private:
  bool copy_and_wait(uint32_t gpu, uint64_t at, uint64_t bytes, const uint8_t* from, uint8_t* to);

  GpuLanes lanes_;
  bool is_lost_ = false;
};

// False if not all bytes could be stored. Only the loop's own thread may store to GPU memory; other threads
// get false.
bool store_memory(Loop& loop, const Memory& memory, const uint8_t* from);
bool load_memory(Loop& loop, const Memory& memory, uint64_t offset, uint8_t* to, uint64_t bytes);
// False if the application has unmapped the memory that it is still sending.
bool load_host(const iovec& piece, uint8_t* to);

}  // namespace verbena::softverbs::wire
