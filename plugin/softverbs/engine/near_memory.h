// Host memory in its owner's segment, which peers map. Peers write this memory with ordinary stores. A write
// to any other memory needs a system call. softverbs_take_memory() gives memory in the segment to an
// application, which registers this memory like any other memory.
#pragma once

#include <cstdint>

#include "softverbs/engine/process.h"

namespace verbena::softverbs {

// Returns this process's address of the peer's memory that is registered by this key, or nullptr if the
// memory is of another kind.
uint8_t* find_near(PeerProcess& peer, uint64_t address, uint64_t bytes, uint32_t key);

}  // namespace verbena::softverbs
