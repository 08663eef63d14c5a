// Host memory in its owner's segment, which peers map. Peers write it with ordinary stores, whereas other
// memory needs a system call. softverbs_take_memory() gives such memory to an application, which registers it
// like any other memory.
#pragma once

#include <cstdint>

#include "softverbs/engine/process.h"

namespace verbena::softverbs {

// Returns this process's address of the peer's memory that is registered by this key, or nullptr if the
// memory is of another kind.
uint8_t* find_near(PeerProcess& peer, uint64_t address, uint64_t bytes, uint32_t key);

}  // namespace verbena::softverbs
