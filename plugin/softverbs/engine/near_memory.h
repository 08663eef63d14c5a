// Host memory that lies in its owner's segment, which peers map: they write it with plain stores, where
// other memory takes a call of the kernel. softverbs_take_memory() gives an application some. It is
// registered like any other.
#pragma once

#include <cstdint>

#include "softverbs/engine/process.h"

namespace verbena::softverbs {

// Where the peer's memory, registered by this key, appears in this process; nullptr: nowhere, it is not such
// memory.
uint8_t* find_near(PeerProcess& peer, uint64_t address, uint64_t bytes, uint32_t key);

}  // namespace verbena::softverbs
