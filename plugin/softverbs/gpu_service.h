#pragma once

#include <cstdint>

#include "softverbs/process.h"

namespace verbena::softverbs {

// For GPU memory that a peer cannot map, its owner copies: between the memory and the peer's staging block,
// which both processes see in the peer's segment.

// Owner: prepares to serve requests for memory of a context. False when CUDA refuses.
bool start_gpu_service(cuda::CUcontext context);

// Peer: one request. False while all are in use.
struct StagedCopy {
  uint64_t address = 0;  // in the owner's GPU memory
  uint64_t bytes = 0;
  uint32_t gpu = 0;
  bool is_write = false;  // into the GPU's memory
  uint64_t stage = 0;     // offset in our segment
  uint64_t stage_block = 0;
  uint64_t stage_block_bytes = 0;
};
bool submit(Peer& owner, const StagedCopy& copy, uint32_t& request);

enum class ServiceState { kBusy, kDone, kFailed };
// When it is no longer busy the request is free again, and must not be asked for any more.
ServiceState look_at_request(Peer& owner, uint32_t request);

}  // namespace verbena::softverbs
