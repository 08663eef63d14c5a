// The examples' kernels on emulated GPUs.
#include <gtest/gtest.h>

#include "device/emulator/world.h"
#include "device/symm/fleet.h"

#define __global__
#define __grid_constant__
#include "examples/all_to_all.cu"
#include "examples/halo_exchange.cu"
#include "examples/ring_all_gather.cu"
#undef __global__
#undef __grid_constant__

namespace verbena::device_test {
namespace {

using emulator::World;

class ExamplesTest : public testing::TestWithParam<int32_t> {};
INSTANTIATE_TEST_SUITE_P(Ranks, ExamplesTest, testing::Values(1, 2, 3, 5), testing::PrintToStringParamName());

// A grid of `blocks` on each rank, twice, one after the other.
void launch_twice(Fleet& fleet, uint32_t blocks, uint32_t threads,
                  const std::function<void(int32_t)>& kernel) {
  for (const uint64_t seed : {1, 2}) {
    World world(seed);
    for (int32_t rank = 0; rank < fleet.size(); ++rank)
      world.add_grid(static_cast<uint32_t>(rank), blocks, threads, [&, rank] { kernel(rank); });
    ASSERT_EQ(world.run(), "");
  }
}

TEST_P(ExamplesTest, RingAllGather) {
  constexpr uint64_t kCount = 301;
  constexpr uint32_t kBlocks = 3, kThreads = 64;
  Fleet fleet(GetParam());
  std::vector<std::vector<float>> sums(fleet.size(), std::vector<float>(kBlocks * kThreads));
  uint32_t failed = 0;
  const auto size = static_cast<uint64_t>(fleet.size());
  for (int32_t rank = 0; rank < fleet.size(); ++rank)
    std::fill_n(fleet.data<float>(rank) + static_cast<uint64_t>(rank) * kCount, kCount,
                static_cast<float>(rank + 1));
  launch_twice(fleet, kBlocks, kThreads, [&](int32_t rank) {
    ring::all_gather(fleet.context(rank), fleet.data<float>(rank), kCount, sums[rank].data(), &failed);
  });
  EXPECT_EQ(failed, 0U);
  for (int32_t rank = 0; rank < fleet.size(); ++rank) {
    for (uint64_t i = 0; i < size * kCount; ++i)
      ASSERT_EQ(fleet.data<float>(rank)[i], static_cast<float>(i / kCount + 1)) << rank << " " << i;
    float sum = 0;
    for (const float one : sums[rank]) sum += one;
    EXPECT_EQ(sum, static_cast<float>(2 * kCount * size * (size + 1) / 2));
  }
}

TEST_P(ExamplesTest, HaloExchange) {
  constexpr uint64_t kCount = 70;
  constexpr uint32_t kSteps = 9;
  Fleet fleet(GetParam());
  const auto size = static_cast<uint64_t>(fleet.size());
  std::vector<float> rod(size * kCount + 2, 0), next(rod);
  for (uint64_t i = 0; i < rod.size(); ++i) rod[i] = next[i] = static_cast<float>(i * i % 97);
  for (uint64_t rank = 0; rank < size; ++rank)
    std::copy_n(rod.data() + rank * kCount, kCount + 2, fleet.data<float>(static_cast<int32_t>(rank)));
  uint32_t failed = 0;
  World world(3);
  for (int32_t rank = 0; rank < fleet.size(); ++rank) {
    world.add_grid(static_cast<uint32_t>(rank), 1, 32, [&, rank] {
      halo::diffuse(fleet.context(rank), fleet.data<float>(rank), kCount, kSteps, &failed);
    });
  }
  ASSERT_EQ(world.run(), "");
  EXPECT_EQ(failed, 0U);
  for (uint32_t step = 0; step < kSteps; ++step) {
    for (uint64_t i = 1; i + 1 < rod.size(); ++i) next[i] = (rod[i - 1] + 2 * rod[i] + rod[i + 1]) / 4;
    rod.swap(next);
  }
  for (uint64_t i = 0; i < size * kCount; ++i) {
    const float* const row = fleet.data<float>(static_cast<int32_t>(i / kCount)) + kSteps % 2 * (kCount + 2);
    ASSERT_EQ(row[i % kCount + 1], rod[i + 1]) << i;
  }
}

TEST_P(ExamplesTest, AllToAll) {
  constexpr uint64_t kBytesEach = 1001;
  Fleet fleet(GetParam());
  const auto size = static_cast<uint64_t>(fleet.size());
  const auto output = [&](int32_t rank) { return fleet.data<char>(rank, 8192); };
  const auto byte = [](uint64_t from, uint64_t to, uint64_t i) {
    return static_cast<char>(from * 37 + to * 101 + i * 7);
  };
  for (int32_t rank = 0; rank < fleet.size(); ++rank) {
    for (uint64_t i = 0; i < size * kBytesEach; ++i)
      fleet.data<char>(rank)[i] = byte(static_cast<uint64_t>(rank), i / kBytesEach, i % kBytesEach);
  }
  uint32_t failed = 0;
  launch_twice(fleet, static_cast<uint32_t>(fleet.size()), 32, [&](int32_t rank) {
    exchange::all_to_all(fleet.context(rank), output(rank), fleet.data<char>(rank), kBytesEach, &failed);
  });
  EXPECT_EQ(failed, 0U);
  for (int32_t rank = 0; rank < fleet.size(); ++rank) {
    for (uint64_t i = 0; i < size * kBytesEach; ++i)
      ASSERT_EQ(output(rank)[i], byte(i / kBytesEach, static_cast<uint64_t>(rank), i % kBytesEach));
  }
}

}  // namespace
}  // namespace verbena::device_test
