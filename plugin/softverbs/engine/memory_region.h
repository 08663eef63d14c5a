// Registered memory: keys, the checks of each access, and the wait for peers that still use a key.
#pragma once

#include <infiniband/verbs.h>

#include "softverbs/engine/objects.h"
#include "softverbs/shared/segment.h"

namespace verbena::softverbs {

// The access to registered memory that a work request needs.
struct MemoryRequest {
  uint64_t address;  // an iova
  uint64_t length;
  uint32_t key;
  uint32_t pd;
  uint32_t access;  // the registration must allow all of these
  uint32_t qp = 0;  // the queue pair at which a remote request arrived; only such requests may use windows
};

struct Place {
  uint64_t address;  // in its owner's address space; 0 if the protection checks fail
  uint32_t gpu;      // 0: host memory; else 1 + the index of its SharedGpu
  bool is_relaxed;   // registered for relaxed ordering, so its bytes are not polled
};

struct MemoryRange {
  ibv_pd* pd;
  uint64_t address;
  uint64_t length;
  int access;
};

// Steps of registering memory. The functions return 0 or an errno.
int check_access(int access);
int attach_memory(const MemoryRange& range, uint32_t& gpu);  // `gpu` as in SharedMr
void detach_memory(uint32_t gpu);
ibv_mr* register_memory(ibv_pd* pd, void* address, size_t length, uint64_t iova, int access);

// Returns the next key of an entry, which differs from its recent keys.
uint32_t renew_key(SharedMr& shared, uint32_t index);

Place translate(Segment& segment, const MemoryRequest& request);

// Waits until no peer accesses memory with a key, or for a queue pair, that became invalid before the call.
void wait_for_peers();

}  // namespace verbena::softverbs
