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

// Where it lies in its owner's address space; 0 when the protection checks refuse it.
uint64_t translate(Segment& segment, const MemoryRequest& request);

}  // namespace verbena::softverbs
