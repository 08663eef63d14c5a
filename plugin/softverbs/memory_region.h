#pragma once

#include <infiniband/verbs.h>

#include "softverbs/segment.h"

namespace verbena::softverbs {

// What a work request wants to do to a piece of registered memory.
struct MemoryRequest {
  uint64_t address;  // an iova
  uint64_t length;
  uint32_t key;
  uint32_t pd;
  uint32_t access;  // the registration must allow all of these
};

struct Place {
  uint64_t address;  // in its owner's address space; 0 when the protection checks refuse it
  uint32_t gpu;      // 0: host memory, else 1 + index of its SharedGpu
};

Place translate(Segment& segment, const MemoryRequest& request);

// Waits until no peer works under a key or for a queue pair as it was before the call.
void wait_for_peers();

}  // namespace verbena::softverbs
