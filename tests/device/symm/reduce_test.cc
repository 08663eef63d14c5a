// Sums over all ranks: counts around the vectors' edges, alignments, team sizes beyond the loads ahead.
#include <gtest/gtest.h>

#include "device/emulator/world.h"
#include "device/symm/fleet.h"
#include "verbena/device/symm.cuh"

namespace verbena::device_test {
namespace {

using emulator::require;
using emulator::World;

struct Case {
  int32_t ranks;
  uint64_t count;
  uint64_t offset_bytes;
};
class SymmReduceTest : public testing::TestWithParam<Case> {
 protected:
  static float element(int32_t rank, uint64_t i) {
    return static_cast<float>(i % 97) + 1000.0F * static_cast<float>(rank + 1);
  }
  void fill(Fleet& fleet) const {
    for (int32_t rank = 0; rank < fleet.size(); ++rank)
      for (uint64_t i = 0; i < GetParam().count; ++i)
        fleet.data<float>(rank, GetParam().offset_bytes)[i] = element(rank, i);
  }
  float sum(uint64_t i) const {
    float sum = 0;
    for (int32_t rank = 0; rank < GetParam().ranks; ++rank) sum += element(rank, i);
    return sum;
  }
};
INSTANTIATE_TEST_SUITE_P(Shapes, SymmReduceTest,
                         testing::Values(Case{1, 10, 0}, Case{2, 0, 0}, Case{2, 1, 0}, Case{2, 4, 0},
                                         Case{2, 1001, 0}, Case{3, 1001, 4}, Case{4, 37, 0}, Case{9, 130, 0}),
                         [](const auto& one) {
                           return std::to_string(one.param.ranks) + "_" + std::to_string(one.param.count) +
                                  "_" + std::to_string(one.param.offset_bytes);
                         });

TEST_P(SymmReduceTest, OneShot) {
  Fleet fleet(GetParam().ranks);
  fill(fleet);
  const uint64_t count = GetParam().count;
  std::vector<std::vector<float>> outputs(static_cast<size_t>(fleet.size()),
                                          std::vector<float>(count + 1, -1));
  World world(3);
  for (int32_t rank = 0; rank < fleet.size(); ++rank) {
    world.add_grid(static_cast<uint32_t>(rank), 1, 64, [&, rank] {
      require(device::symm_all_reduce_one_shot(
                  fleet.context(rank), 0, outputs[static_cast<size_t>(rank)].data(),
                  fleet.data<float>(rank, GetParam().offset_bytes), count) == SymmStatus::kDone,
              "reduce");
      // The others have read it: it may be changed.
      float* const input = fleet.data<float>(rank, GetParam().offset_bytes);
      for (uint64_t i = device::thread_index(); i < count; i += device::threads_per_block())
        device::store<device::Order::kWeak, device::Scope::kThreads>(input + i, -7.0F);
    });
  }
  EXPECT_EQ(world.run(), "");
  for (const auto& output : outputs) {
    for (uint64_t i = 0; i < count; ++i) ASSERT_EQ(output[i], sum(i)) << i;
    EXPECT_EQ(output[count], -1) << "not an element more";
  }
}

TEST_P(SymmReduceTest, TwoShots) {
  Fleet fleet(GetParam().ranks);
  fill(fleet);
  const uint64_t count = GetParam().count;
  for (int32_t rank = 0; rank < fleet.size(); ++rank)
    fleet.data<float>(rank, GetParam().offset_bytes)[count] = -1;
  World world(4);
  for (int32_t rank = 0; rank < fleet.size(); ++rank) {
    world.add_grid(static_cast<uint32_t>(rank), 1, 64, [&, rank] {
      require(device::symm_all_reduce_two_shot(fleet.context(rank), 1,
                                               fleet.data<float>(rank, GetParam().offset_bytes),
                                               count) == SymmStatus::kDone,
              "reduce");
      // All of it is here, not only this rank's part.
      const float* const data = fleet.data<float>(rank, GetParam().offset_bytes);
      for (uint64_t i = device::thread_index(); i < count; i += device::threads_per_block())
        require(device::load<device::Order::kWeak, device::Scope::kThreads>(data + i) == sum(i), "sum");
    });
  }
  EXPECT_EQ(world.run(), "");
  for (int32_t rank = 0; rank < fleet.size(); ++rank) {
    const float* const data = fleet.data<float>(rank, GetParam().offset_bytes);
    for (uint64_t i = 0; i < count; ++i) ASSERT_EQ(data[i], sum(i)) << rank << " " << i;
    EXPECT_EQ(data[count], -1) << "not an element more";
  }
}

}  // namespace
}  // namespace verbena::device_test
