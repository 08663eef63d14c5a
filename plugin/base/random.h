// Random bytes that an attacker cannot guess.
#pragma once

#include <cstdint>
#include <span>

#include "base/status.h"

namespace verbena::base {

// Gets at most 256 bytes from the system. Never blocks: before the system's generator is ready it returns
// Status::kSystem and logs `what`, the object that needs them.
Outcome draw_random(std::span<uint8_t> bytes, const char* what);

}  // namespace verbena::base
