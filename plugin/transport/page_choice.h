// How many receive entries a connection asks the bounce pool for, and where its pages live.
#pragma once

#include <cstdint>

#include "transport/bounce_pool.h"
#include "transport/nic.h"

namespace verbena::transport {

inline constexpr uint32_t kLeastEntries = 4;  // of a connection: a message of two pages may be staged

// The longest message that may be staged, as a slot and a window allow.
uint64_t find_threshold_bytes();
// For a whole connection.
BouncePool::Wish choose_window();
// A queue pair's share.
BouncePool::Wish divide(const BouncePool::Wish& wish, uint32_t pairs);
BouncePool::Kind choose_page_pool(const Nic& nic);

}  // namespace verbena::transport
