// What an attacker must not guess.
#pragma once

#include <cstdint>
#include <span>

#include "base/status.h"

namespace verbena::base {

// At most 256 bytes, from the system. Never blocks: Status::kSystem, logged with `what` wants them, where the
// system has no randomness yet.
Outcome draw_random(std::span<uint8_t> bytes, const char* what);

}  // namespace verbena::base
