// How many receive entries a connection asks the bounce pool for, and where its pages live.
#pragma once

#include <cstdint>

#include "transport/link/nic.h"
#include "transport/memory/bounce_pool.h"

namespace verbena::transport {

// Of a queue pair, unless the user wants fewer: NCCL keeps 8 messages open, and entries come back in runs.
inline constexpr uint32_t kMinEntries = 12;

// The longest message that may be staged, as a slot and a window allow.
uint64_t find_threshold_bytes();
// Where a connection's pages live, how long they are, and whether each of its rails gets a run of its own.
struct PageChoice {
  BouncePool::Kind kind = BouncePool::Kind::kHostPages;
  uint32_t page_bytes = 0;
  bool wants_runs = false;
};
PageChoice choose_pages(const Nic& nic);
// Of pages, for each of a connection's queue pairs.
BouncePool::WindowRequest choose_window(uint32_t pairs, uint32_t page_bytes, bool wants_run = false);
// Of bare entries, for each queue pair. `connections`: as many as are expected on this GPU; 0: not known.
BouncePool::WindowRequest choose_direct_window(uint32_t connections);

}  // namespace verbena::transport
