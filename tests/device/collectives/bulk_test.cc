// The order of what bulk.cuh does, chunk by chunk: slots that are used again and again, ranks that are slow,
// calls behind each other. Small, since tests/mutation runs it for each order that it weakens.
#include "verbena/device/collectives/bulk.cuh"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "device/emulator/world.h"
#include "device/support/run_kernel.h"
#include "device/symm/fleet.h"

namespace verbena::device_test {
namespace {

using emulator::require_done;
using emulator::World;

constexpr uint64_t kSlotBytes = 384, kTimeout_ns = 3'000'000;

struct alignas(16) Vector {
  float numbers[4];
};

// Each rank has index + rank * 1000 + round; the sum of all is what is expected. Ten chunks and more.
std::string sum(uint64_t seed, int32_t ranks, bool is_exchange) {
  constexpr uint64_t kVectors = 160;
  const auto size = static_cast<size_t>(ranks);
  Fleet fleet(ranks, INT32_MAX, Fleet::measure_workspace(ranks, 1, kSlotBytes));
  std::vector<std::vector<Vector>> inputs(size, std::vector<Vector>(kVectors)), outputs = inputs;
  for (size_t rank = 0; rank < size; ++rank) {
    fleet.context(static_cast<int32_t>(rank)).timeout_ns = kTimeout_ns;
    for (uint64_t i = 0; i < 4 * kVectors; ++i)
      inputs[rank][i / 4].numbers[i % 4] = static_cast<float>(i + rank * 1000 + seed);
  }
  World world(seed);
  for (int32_t rank = 0; rank < ranks; ++rank) {
    world.add_grid(static_cast<uint32_t>(rank), 1, 64, [&, rank] {
      const SymmWorkspace<> mine = fleet.workspace(rank, 0, 1, kSlotBytes);
      const auto r = static_cast<size_t>(rank);
      const char* const input = reinterpret_cast<const char*>(inputs[r].data());
      char* const output = reinterpret_cast<char*>(outputs[r].data());
      if ((seed + r) % 2 == 0) device::pause(100'000);
      device::Bulk<> calls(mine, 0, 1);
      if (is_exchange) {
        const device::Part part{0, kVectors * 16};
        const auto plan = [&](int32_t) {
          return device::ExchangeEntry{device::Rows::contiguous(input), device::Rows::contiguous(output),
                                       part, part};
        };
        require_done(calls.exchange_reduce(plan, kVectors * 16, device::ReduceAs<float>{}), "exchange");
      } else {
        const device::PlainCodec<device::ReduceAs<float>> codec{};
        require_done(calls.all_reduce(input, output, kVectors * 16, codec), "all_reduce");
      }
      require_done(calls.finish(), "finish");
    });
  }
  if (const std::string failure = world.run(); !failure.empty()) return failure;
  for (size_t rank = 0; rank < size; ++rank) {
    for (uint64_t i = 0; i < 4 * kVectors; ++i) {
      float expected = 0;
      for (size_t other = 0; other < size; ++other) expected += static_cast<float>(i + other * 1000 + seed);
      if (outputs[rank][i / 4].numbers[i % 4] != expected)
        return "rank " + std::to_string(rank) + ": number " + std::to_string(i) + " is wrong";
    }
  }
  return "";
}

TEST(Bulk, SlotsAreUsedAgainAndAgain) {
  for (uint64_t seed = 0; seed < 6; ++seed) {
    for (const bool is_exchange : {false, true}) {
      EXPECT_EQ(sum(seed, 2, is_exchange), "") << seed << " " << is_exchange;
      if (seed >= 2) continue;
      EXPECT_EQ(sum(seed, 3, is_exchange), "") << seed << " " << is_exchange;
    }
  }
}

// What other threads of the block have stored is there when a call returns.
TEST(Bulk, ACallUsesTheResultOfTheOneBefore) {
  constexpr uint64_t kCount = 64;  // a chunk of each share: nothing meets behind it but the call itself
  Fleet fleet(2, INT32_MAX, Fleet::measure_workspace(2, 1, kSlotBytes));
  for (const int32_t rank : {0, 1}) fleet.context(rank).timeout_ns = kTimeout_ns;
  std::vector<std::vector<Vector>> first(2, std::vector<Vector>(kCount / 4)), second = first, third = first;
  for (size_t rank = 0; rank < 2; ++rank)
    for (uint64_t i = 0; i < kCount; ++i) first[rank][i / 4].numbers[i % 4] = static_cast<float>(i);
  for (uint64_t seed = 0; seed < 4; ++seed) {
    emulator::run_on_ranks(seed, 2, 1, 64, [&](int32_t rank) {
      const SymmWorkspace<> mine = fleet.workspace(rank, 0, 1, kSlotBytes);
      const auto at = [&](std::vector<std::vector<Vector>>& of) {
        return reinterpret_cast<char*>(of[static_cast<size_t>(rank)].data());
      };
      device::Bulk<> calls(mine, 0, 1);
      const device::PlainCodec<device::ReduceAs<float>> codec{};
      require_done(calls.all_reduce(at(first), at(second), kCount * 4, codec), "first");
      // From another place on: each number is another thread's.
      require_done(calls.all_reduce(at(second) + 80, at(third), kCount * 4 - 80, codec), "second");
      require_done(calls.finish(), "finish");
    });
    for (uint64_t i = 0; i < kCount - 20; ++i)
      ASSERT_EQ(third[1][i / 4].numbers[i % 4], 4 * static_cast<float>(i + 20)) << seed;
  }
}

}  // namespace
}  // namespace verbena::device_test
