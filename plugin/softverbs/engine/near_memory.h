// Host memory in its owner's segment, which peers map: peers write it with plain stores, while other memory
// needs a system call. softverbs_take_memory() gives such memory to an application, which registers it like
// any other memory.
#pragma once

#include <cstdint>

#include "softverbs/engine/process.h"

namespace verbena::softverbs {

// Returns the address in this process of the peer's memory that is registered by this key; nullptr if it is
// not such memory.
uint8_t* find_near(PeerProcess& peer, uint64_t address, uint64_t bytes, uint32_t key);

}  // namespace verbena::softverbs
