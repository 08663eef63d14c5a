// Kernels that run with nothing beside them: one on one GPU, or one on each rank's GPU.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <source_location>
#include <string>
#include <utility>

#include "device/emulator/world.h"

namespace verbena::emulator {

// Runs `kernel(rank)` as one grid on the GPU of each rank. The test fails if the run does.
inline void run_on_ranks(uint64_t seed, int32_t ranks, uint32_t blocks, uint32_t threads,
                         const std::function<void(int32_t rank)>& kernel, const World::Limits& limits = {},
                         const std::source_location& at = std::source_location::current()) {
  World world(seed, limits);
  for (int32_t rank = 0; rank < ranks; ++rank)
    world.add_grid(static_cast<uint32_t>(rank), blocks, threads, [&kernel, rank] { kernel(rank); });
  if (const std::string wrong = world.run(); !wrong.empty())
    ADD_FAILURE_AT(at.file_name(), static_cast<int>(at.line()))
        << wrong << " (seed " << seed << ", ranks " << ranks << ")";
}

// Runs the kernel on one GPU. The test fails if the run does.
inline void run_kernel(uint64_t seed, uint32_t blocks, uint32_t threads, const std::function<void()>& kernel,
                       const std::source_location& at = std::source_location::current()) {
  run_on_ranks(
      seed, 1, blocks, threads, [&kernel](int32_t) { kernel(); }, {}, at);
}

}  // namespace verbena::emulator
