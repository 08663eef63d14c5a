#pragma once

#include <cstdint>

#include "softverbs/gpu_lane.h"
#include "softverbs/operation.h"

namespace verbena::softverbs::wire {

class Loop;

// A loop's way to GPU memory: lanes, and pinned memory through which all its copies go, so that a copy that
// does not end in time can harm nothing else. Used with the turn, by the loop's own thread; others only
// prepare it.
class GpuPath {
 public:
  // Opens the lane of a context. Called where blocking is allowed. False when CUDA refuses.
  bool prepare(const cuda::Driver& driver, cuda::CUcontext context);
  // Waits for the GPU. False when CUDA refuses, or takes too long: then this path is closed for good.
  bool write(uint32_t gpu, uint64_t to, const uint8_t* from, uint64_t bytes);
  bool read(uint32_t gpu, uint64_t from, uint8_t* to, uint64_t bytes);

 private:
  bool copy_and_wait(uint32_t gpu, uint64_t to, uint64_t from, uint64_t bytes);

  GpuLanes lanes_;
  std::once_flag once_;
  uint8_t* bounce_ = nullptr;
  bool is_lost_ = false;
};

// False when the bytes could not be stored, or not all of them could be had. GPU memory is for the loop's own
// thread; others are refused.
bool store_memory(Loop& loop, const Memory& memory, const uint8_t* from);
bool load_memory(Loop& loop, const Memory& memory, uint64_t offset, uint8_t* to, uint64_t bytes);
// The application may have unmapped what it is still sending.
bool load_host(const iovec& piece, uint8_t* to);

}  // namespace verbena::softverbs::wire
