// Kernels that run alone, on one GPU or on each rank's, or beside one function of the host.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <source_location>
#include <string>
#include <utility>

#include "device/emulator/world.h"

namespace verbena::emulator {

inline void expect_right(World& world, uint64_t seed, const std::source_location& at) {
  if (const std::string wrong = world.run(); !wrong.empty())
    ADD_FAILURE_AT(at.file_name(), static_cast<int>(at.line())) << wrong << " (seed " << seed << ")";
}

// Runs `kernel(rank)` as one grid on the GPU of each rank. The test fails if the run does.
inline void run_on_ranks(uint64_t seed, int32_t ranks, uint32_t blocks, uint32_t threads,
                         const std::function<void(int32_t rank)>& kernel, const World::Limits& limits = {},
                         const std::source_location& at = std::source_location::current()) {
  World world(seed, limits);
  for (int32_t rank = 0; rank < ranks; ++rank)
    world.add_grid(static_cast<uint32_t>(rank), blocks, threads, [&kernel, rank] { kernel(rank); });
  expect_right(world, seed, at);
}

// Runs the kernel on one GPU. The test fails if the run does.
inline void run_kernel(uint64_t seed, uint32_t blocks, uint32_t threads, const std::function<void()>& kernel,
                       const std::source_location& at = std::source_location::current()) {
  run_on_ranks(
      seed, 1, blocks, threads, [&kernel](int32_t) { kernel(); }, {}, at);
}

// The same beside a function of the host.
inline void run_beside(const std::function<void()>& host, uint64_t seed, uint32_t blocks, uint32_t threads,
                       const std::function<void()>& kernel,
                       const std::source_location& at = std::source_location::current()) {
  World world(seed);
  world.add_grid(0, blocks, threads, kernel);
  world.add_host(host);
  expect_right(world, seed, at);
}

}  // namespace verbena::emulator
