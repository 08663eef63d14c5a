// Kernels of libverbena_ops.so behind each other by programmatic dependent launch, on emulated GPUs: each
// begins while the one before still runs, and uses what that one computes.
#include <gtest/gtest.h>

#include <vector>

#include "device/emulator/world.h"
#include "device/ops/run_calls.cuh"
#include "device/symm/fleet.h"

namespace verbena::device_test {
namespace {

using emulator::World;
using ops::Call;
using ops::GroupLaunch;
using ops::Kind;

constexpr int32_t kRanks = 2;
constexpr uint32_t kBlocks = 2;
constexpr uint64_t kCount = 96, kSlotBytes = 640;
using Tensor = std::vector<float>;

// Launches of one rank in its stream. A call of no numbers stands for one that its blocks have nothing to do
// for.
template <typename Way>
void expect_in_order(uint64_t seed, const std::vector<uint64_t>& counts) {
  Fleet fleet(kRanks, INT32_MAX, Fleet::measure_workspace(kRanks, kBlocks, kSlotBytes));
  std::vector<std::vector<Tensor>> tensors(kRanks, std::vector<Tensor>(counts.size() + 1, Tensor(kCount)));
  std::vector<std::vector<GroupLaunch>> launches(kRanks, std::vector<GroupLaunch>(counts.size()));
  int64_t status[kRanks] = {};
  World world(seed);
  for (int32_t rank = 0; rank < kRanks; ++rank) {
    auto& mine = tensors[static_cast<size_t>(rank)];
    for (uint64_t i = 0; i < kCount; ++i) mine[0][i] = static_cast<float>(i + static_cast<uint64_t>(rank));
    emulator::Grid* earlier = nullptr;
    size_t input = 0;
    for (size_t i = 0; i < counts.size(); ++i) {
      GroupLaunch& launch = launches[static_cast<size_t>(rank)][i];
      launch = {};
      launch.workspace = fleet.workspace(rank, 0, kBlocks, kSlotBytes);
      launch.status = &status[rank];
      launch.programmatic_launch = 1;
      launch.pause_after_ns = 300'000;  // the next one has begun meanwhile
      launch.count_calls = 1;
      Call& call = launch.calls[0];
      call.kind = Kind::kAllReduce;
      call.algorithm = ops::Algorithm::kBulkTwoShot;
      call.type = static_cast<uint32_t>(device::DataType::kFloat32);
      call.reduction = static_cast<uint32_t>(device::Reduction::kSum);
      call.length_bytes = counts[i] * sizeof(float);
      call.input = reinterpret_cast<const char*>(mine[input].data());
      call.output = reinterpret_cast<char*>(mine[i + 1].data());
      if (counts[i] != 0) input = i + 1;
      earlier = world.add_grid(
          static_cast<uint32_t>(rank), kBlocks, 32, [&launch] { ops::run_calls<Way>(launch); }, 1, earlier);
    }
  }
  ASSERT_EQ(world.run(), "") << seed;
  for (int32_t rank = 0; rank < kRanks; ++rank) {
    ASSERT_EQ(status[rank], 0) << seed;
    float sum = 1;  // of rank 0's i and rank 1's i + 1
    float factor = 2;
    for (size_t i = 0; i < counts.size(); ++i) {
      if (counts[i] == 0) continue;
      for (uint64_t at = 0; at < kCount; ++at)
        ASSERT_EQ(tensors[static_cast<size_t>(rank)][i + 1][at], factor * static_cast<float>(at) + sum)
            << "seed " << seed << ", launch " << i << ", rank " << rank << ", number " << at;
      factor *= 2, sum *= 2;
    }
  }
}

TEST(DependentLaunch, EachUsesWhatTheOneBeforeComputes) {
  for (uint64_t seed = 0; seed < 6; ++seed) {
    expect_in_order<ops::ByPackets<0>>(seed, {kCount, kCount, kCount});
    expect_in_order<ops::ByChunks<0>>(seed, {kCount, kCount, kCount});
  }
}

// A grid without work ends no earlier than the one in front of it: who waits for it waits for both.
TEST(DependentLaunch, AGridWithoutWorkKeepsTheOrder) {
  for (uint64_t seed = 0; seed < 6; ++seed) {
    expect_in_order<ops::ByPackets<0>>(seed, {kCount, 0, kCount, 0, 0, kCount});
    expect_in_order<ops::ByChunks<0>>(seed, {kCount, 0, kCount, 0, 0, kCount});
  }
}

}  // namespace
}  // namespace verbena::device_test
