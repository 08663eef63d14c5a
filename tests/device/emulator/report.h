// Says in words where each thread stands.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "fiber.h"

namespace verbena::emulator {

// "gpu 0 block 1 thread 31", "host 2"
std::string describe_place(const Fiber& fiber);

// Threads of one block that do the same share a line; those that ended are counted.
std::string describe_fibers(const std::vector<std::unique_ptr<Fiber>>& fibers, const Fiber* running);

}  // namespace verbena::emulator
