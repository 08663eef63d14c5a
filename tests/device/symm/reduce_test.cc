// Sums over all ranks: counts around the vectors' edges, alignments, team sizes beyond the loads ahead.
#include <gtest/gtest.h>

#include "device/emulator/world.h"
#include "device/support/run_kernel.h"
#include "device/symm/fleet.h"
#include "verbena/device/symm.cuh"

namespace verbena::device_test {
namespace {

using emulator::require;
using emulator::require_done;
using emulator::World;

struct Case {
  int32_t ranks;
  uint64_t count;
  uint64_t offset_bytes;
};
// With the number of ranks as a constant, for some.
SymmStatus call_one_shot(const SymmContext& context, float* output, const float* input, uint64_t count) {
  if (context.team_size == 2) return device::symm_all_reduce_one_shot<2>(context, 0, output, input, count);
  if (context.team_size == 4) return device::symm_all_reduce_one_shot<4>(context, 0, output, input, count);
  return device::symm_all_reduce_one_shot(context, 0, output, input, count);
}
SymmStatus call_two_shots(const SymmContext& context, float* data, uint64_t count) {
  if (context.team_size == 3) return device::symm_all_reduce_two_shot<3>(context, 1, data, count);
  return device::symm_all_reduce_two_shot(context, 1, data, count);
}

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
                                         Case{2, 1001, 0}, Case{3, 1001, 4}, Case{4, 37, 0}, Case{4, 2003, 0},
                                         Case{5, 411, 4}, Case{6, 77, 0}, Case{7, 530, 0}, Case{8, 700, 0},
                                         Case{9, 130, 0}, Case{16, 203, 0}),
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
  emulator::run_on_ranks(3, fleet.size(), 1, 64, [&](int32_t rank) {
    float* const output = outputs[static_cast<size_t>(rank)].data();
    const float* const given = fleet.data<float>(rank, GetParam().offset_bytes);
    require_done(call_one_shot(fleet.context(rank), output, given, count), "reduce");
    // The others have read it: it may be changed.
    float* const input = fleet.data<float>(rank, GetParam().offset_bytes);
    for (uint64_t i = device::thread_index(); i < count; i += device::threads_per_block())
      device::store<device::Order::kWeak, device::Scope::kThreads>(input + i, -7.0F);
  });
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
  emulator::run_on_ranks(4, fleet.size(), 1, 64, [&](int32_t rank) {
    float* const given = fleet.data<float>(rank, GetParam().offset_bytes);
    require_done(call_two_shots(fleet.context(rank), given, count), "reduce");
    // All of it is here, not only this rank's part.
    const float* const data = fleet.data<float>(rank, GetParam().offset_bytes);
    for (uint64_t i = device::thread_index(); i < count; i += device::threads_per_block())
      require(device::load<device::Order::kWeak, device::Scope::kThreads>(data + i) == sum(i), "sum");
  });
  for (int32_t rank = 0; rank < fleet.size(); ++rank) {
    const float* const data = fleet.data<float>(rank, GetParam().offset_bytes);
    for (uint64_t i = 0; i < count; ++i) ASSERT_EQ(data[i], sum(i)) << rank << " " << i;
    EXPECT_EQ(data[count], -1) << "not an element more";
  }
}

// The upper half of a float, rounded to nearest, as CUDA's __nv_bfloat16.
struct Upper {
  uint16_t bits = 0;

  Upper() = default;
  explicit Upper(float value) {
    const auto whole = __builtin_bit_cast(uint32_t, value);
    bits = static_cast<uint16_t>((whole + 0x7fff + (whole >> 16 & 1)) >> 16);
  }
  operator float() const { return __builtin_bit_cast(float, uint32_t{bits} << 16); }  // NOLINT
};

// 256 and eight times 1: each 1 alone is rounded away.
TEST(SymmReduce, NumbersOfTwoBytesAreRoundedOnce) {
  constexpr uint64_t kCount = 21;
  for (const bool is_two_shot : {false, true}) {
    Fleet fleet(9);
    std::vector<std::vector<Upper>> outputs(9, std::vector<Upper>(kCount));
    World world(5);
    for (int32_t rank = 0; rank < 9; ++rank) {
      auto* const data = fleet.data<Upper>(rank);
      for (uint64_t i = 0; i < kCount; ++i) data[i] = Upper(rank == 0 ? 256.0F : 1.0F);
      world.add_grid(static_cast<uint32_t>(rank), 1, 32, [&, rank, data] {
        Upper* const output = outputs[static_cast<size_t>(rank)].data();
        const SymmStatus status =
            is_two_shot ? device::symm_all_reduce_two_shot(fleet.context(rank), 0, data, kCount)
                        : device::symm_all_reduce_one_shot(fleet.context(rank), 0, output, data, kCount);
        require(status == SymmStatus::kDone, "reduce");
      });
    }
    EXPECT_EQ(world.run(), "");
    for (int32_t rank = 0; rank < 9; ++rank) {
      const Upper* const sums =
          is_two_shot ? fleet.data<Upper>(rank) : outputs[static_cast<size_t>(rank)].data();
      for (uint64_t i = 0; i < kCount; ++i) EXPECT_EQ(float{sums[i]}, 264.0F) << rank << " " << i;
    }
  }
}

// Each rank's numbers are scaled on the way, the sum is kept in float, and goes to two places.
TEST(SymmReduce, PrologueAndEpilogueAreTheCallers) {
  constexpr int32_t kRanks = 3;
  constexpr uint64_t kCount = 71;
  Fleet fleet(kRanks);
  for (int32_t rank = 0; rank < kRanks; ++rank)
    for (uint64_t i = 0; i < kCount; ++i)
      fleet.data<device::Half>(rank)[i] = device::narrow<device::Half>(static_cast<float>(i % 8 + 1));
  std::vector<float> sums(kCount);
  std::vector<device::Half> rounded(kCount + 1);
  emulator::run_kernel(2, 1, 32, [&] {
    device::reduce_copy<kRanks>(
        fleet.context(0), device::BlockGroup{}, fleet.data<device::Half>(0), kCount, true,
        [](int32_t rank, const auto& numbers) {
          std::decay_t<decltype(numbers)> scaled = numbers;
          for (auto& unit : scaled.units) {
            float pair[2];
            device::Element<device::Half>::widen(unit, pair);
            for (float& number : pair) number *= static_cast<float>(rank + 1);
            unit = device::Element<device::Half>::narrow(pair);
          }
          return scaled;
        },
        [&](uint64_t index, const auto& sum) {
          for (uint32_t i = 0; i < sum.kCount; ++i) sums[index + i] = sum.sums[i];
          device::store_packed(rounded.data() + index, sum.round());
        });
    require(device::symm_all_reduce_one_shot<2>(fleet.context(0), 0, sums.data(), fleet.data<float>(0), 1) ==
                SymmStatus::kInvalid,
            "a team of another size");
  });
  for (uint64_t i = 0; i < kCount; ++i) {
    EXPECT_EQ(sums[i], static_cast<float>(i % 8 + 1) * 6) << i;
    EXPECT_EQ(device::widen(rounded[i]), sums[i]) << i;
  }
  EXPECT_EQ(rounded[kCount].bits, 0) << "not a number more";
}

// ---- By switches ----

// The heaps of all ranks have multicast addresses, each rank's where its context says.
void add_multicast(World& world, Fleet& fleet) {
  constexpr int64_t kDelta = int64_t{1} << 45;
  std::vector<void*> heaps;
  for (int32_t rank = 0; rank < fleet.size(); ++rank)
    heaps.push_back(reinterpret_cast<void*>(fleet.context(rank).heap_begin));
  for (int32_t rank = 0; rank < fleet.size(); ++rank) {
    SymmContext& context = fleet.context(rank);
    context.multicast_delta = kDelta;
    world.add_multicast(context.heap_begin + kDelta, context.heap_end - context.heap_begin, heaps);
  }
}

TEST_P(SymmReduceTest, Multicast) {
  Fleet fleet(GetParam().ranks);
  fill(fleet);
  const uint64_t count = GetParam().count / 4 * 4;
  World world(5);
  add_multicast(world, fleet);
  const auto wanted = GetParam().offset_bytes % 16 == 0 ? SymmStatus::kDone : SymmStatus::kInvalid;
  for (int32_t rank = 0; rank < fleet.size(); ++rank) {
    world.add_grid(static_cast<uint32_t>(rank), 1, 64, [&, rank] {
      float* const data = fleet.data<float>(rank, GetParam().offset_bytes);
      require(device::symm_all_reduce_multicast(fleet.context(rank), 2, data, count) == wanted, "reduce");
      for (uint64_t i = device::thread_index(); i < count && wanted == SymmStatus::kDone;
           i += device::threads_per_block())
        require(device::load<device::Order::kWeak, device::Scope::kThreads>(data + i) == sum(i), "the sum");
    });
  }
  EXPECT_EQ(world.run(), "");
  for (int32_t rank = 0; rank < fleet.size(); ++rank)
    for (uint64_t i = count; i < GetParam().count; ++i)
      ASSERT_EQ(fleet.data<float>(rank, GetParam().offset_bytes)[i], element(rank, i))
          << "not an element more";
}

TEST(SymmReduce, MulticastIsOnlyWhereItIs) {
  Fleet fleet(2), far(2, 1);
  emulator::run_kernel(0, 1, 1, [&] {
    float* const data = fleet.data<float>(0);
    require(device::symm_all_reduce_multicast(fleet.context(0), 0, data, 8, device::ThreadGroup{}) ==
                SymmStatus::kUnreachable,
            "none");
    require(device::symm_all_reduce_multicast(far.context(0), 0, far.data<float>(0), 8,
                                              device::ThreadGroup{}) == SymmStatus::kUnreachable,
            "far");
    fleet.context(0).multicast_delta = 4096;
    require(device::symm_all_reduce_multicast(fleet.context(0), 0, data, 7, device::ThreadGroup{}) ==
                SymmStatus::kInvalid,
            "half a vector");
  });
}

}  // namespace
}  // namespace verbena::device_test
