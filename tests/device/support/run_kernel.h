// A kernel that runs alone.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <source_location>
#include <string>
#include <utility>

#include "device/emulator/world.h"

namespace verbena::emulator {

// Runs the kernel on one GPU. The test fails if the run does.
inline void run_kernel(uint64_t seed, uint32_t blocks, uint32_t threads, std::function<void()> kernel,
                       const std::source_location& at = std::source_location::current()) {
  World world(seed);
  world.add_grid(0, blocks, threads, std::move(kernel));
  if (const std::string wrong = world.run(); !wrong.empty())
    ADD_FAILURE_AT(at.file_name(), static_cast<int>(at.line())) << wrong;
}

}  // namespace verbena::emulator
