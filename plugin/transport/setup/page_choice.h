// Chooses how many receive entries a connection reserves from the bounce pool, and the memory of its pages.
#pragma once

#include <cstdint>

#include "transport/link/nic.h"
#include "transport/memory/bounce_pool.h"

namespace verbena::transport {

// Entries of a queue pair, unless the user sets fewer. NCCL keeps 8 messages open, and entries are returned
// in batches.
inline constexpr uint32_t kMinEntries = 12;

// Returns the length of the longest message that may be staged. The unpack slot and the window limit it.
uint64_t find_threshold_bytes();
// The memory and length of a connection's pages, and whether each of its rails gets a run of pages.
struct PageChoice {
  BouncePool::Kind kind = BouncePool::Kind::kHostPages;
  uint32_t page_bytes = 0;
  bool wants_runs = false;
};
PageChoice choose_pages(const Nic& nic);
// Returns the number of pages for each queue pair of a connection.
BouncePool::WindowRequest choose_window(uint32_t pairs, uint32_t page_bytes, bool wants_run = false);
// Returns the number of entries without pages for each queue pair. `connections` is the number of connections
// expected on this GPU; 0 if unknown.
BouncePool::WindowRequest choose_direct_window(uint32_t connections);

}  // namespace verbena::transport
