// The examples' kernels on emulated GPUs.
#include <gtest/gtest.h>

#include "device/emulator/world.h"
#include "device/support/run_kernel.h"
#include "device/symm/fleet.h"

#define __global__
#define __grid_constant__
#include "examples/halo_exchange.cu"
#include "examples/moe_dispatch.cu"
#include "examples/ring_reduce_scatter.cu"
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
    emulator::run_on_ranks(seed, fleet.size(), blocks, threads, [&](int32_t rank) { kernel(rank); });
  }
}

TEST_P(ExamplesTest, RingReduceScatter) {
  constexpr uint64_t kCount = 300;
  constexpr uint32_t kBlocks = 4, kThreads = 64;
  Fleet fleet(GetParam());
  const auto size = static_cast<uint64_t>(fleet.size());
  const auto number = [](uint64_t rank, uint64_t i) { return static_cast<float>((rank + 1) * (i % 97)); };
  const auto slots = [&](int32_t rank) { return fleet.data<float>(rank, 16384); };
  for (int32_t rank = 0; rank < fleet.size(); ++rank) {
    for (uint64_t i = 0; i < size * kCount; ++i)
      fleet.data<float>(rank)[i] = number(static_cast<uint64_t>(rank), i);
  }
  std::vector<std::vector<float>> sums(size, std::vector<float>(kCount));
  uint32_t failed = 0;
  launch_twice(fleet, kBlocks, kThreads, [&](int32_t rank) {
    ring::reduce_scatter(fleet.context(rank), sums[static_cast<size_t>(rank)].data(), fleet.data<float>(rank),
                         slots(rank), kCount, &failed);
  });
  EXPECT_EQ(failed, 0U);
  for (uint64_t rank = 0; rank < size; ++rank) {
    for (uint64_t i = 0; i < kCount; ++i) {
      float expected = 0;
      for (uint64_t from = 0; from < size; ++from) expected += number(from, rank * kCount + i);
      ASSERT_EQ(sums[rank][i], expected) << rank << " " << i;
    }
  }
}

TEST_P(ExamplesTest, MoeDispatch) {
  constexpr uint32_t kTokens = 23, kRow = 12, kLaunches = 3, kThreads = 64;
  Fleet fleet(GetParam());
  const auto size = static_cast<uint32_t>(fleet.size());
  const auto tokens = [&](int32_t rank) { return fleet.data<float>(rank, 1024); };
  const auto arrived = [&](int32_t rank) { return fleet.data<float>(rank, 8192); };
  // In one of the launches all go to one rank.
  const auto choose = [&](uint32_t rank, uint32_t token, uint32_t launch) {
    return launch == 2 ? size - 1 : (token * token + rank + launch) % 7 % size;
  };
  const auto number = [](uint32_t rank, uint32_t token, uint32_t launch) {
    return static_cast<float>((launch * 16 + rank) * kTokens + token);
  };
  for (uint32_t launch = 1; launch <= kLaunches; ++launch) {
    std::vector<std::vector<uint32_t>> experts(size, std::vector<uint32_t>(kTokens));
    std::vector<std::vector<float>> packed(size, std::vector<float>(size * kTokens * kRow));
    std::vector<uint32_t> packed_rows(size);
    uint32_t failed = 0;
    World world(launch - 1);
    for (int32_t rank = 0; rank < fleet.size(); ++rank) {
      const auto r = static_cast<uint32_t>(rank);
      for (uint32_t i = 0; i < kTokens; ++i) {
        experts[r][i] = choose(r, i, launch);
        std::fill_n(tokens(rank) + i * kRow, kRow, number(r, i, launch));
      }
      world.add_grid(r, size, kThreads, [&, r, rank] {
        moe::dispatch(fleet.context(rank), packed[r].data(), &packed_rows[r], arrived(rank),
                      fleet.data<uint64_t>(rank), tokens(rank), experts[r].data(), kTokens, kTokens, kRow,
                      launch, &failed);
      });
    }
    ASSERT_EQ(world.run(), "");
    EXPECT_EQ(failed, 0U);
    for (uint32_t rank = 0; rank < size; ++rank) {
      uint32_t rows = 0;
      for (uint32_t i = 0; i < size * kTokens; ++i) {
        if (choose(i / kTokens, i % kTokens, launch) != rank) continue;
        for (uint32_t j = 0; j < kRow; ++j)
          ASSERT_EQ(packed[rank][rows * kRow + j], number(i / kTokens, i % kTokens, launch))
              << rank << " " << rows;
        ++rows;
      }
      EXPECT_EQ(packed_rows[rank], rows);
    }
  }
}

// Rows and columns of ranks, and cells of each; with a single row of cells, and of ranks.
class HaloTest : public testing::TestWithParam<std::tuple<int32_t, int32_t, uint64_t, uint64_t>> {};
INSTANTIATE_TEST_SUITE_P(Grids, HaloTest,
                         testing::Values(std::tuple(1, 1, 5, 7), std::tuple(1, 3, 4, 5),
                                         std::tuple(2, 2, 6, 9), std::tuple(3, 2, 1, 2),
                                         std::tuple(2, 3, 3, 1)));

TEST_P(HaloTest, IsThatOfTheWholePlate) {
  constexpr uint32_t kSteps = 6, kThreads = 64;
  const auto [rows, columns, height, width] = GetParam();
  const uint64_t pitch = width + 2, plate_cells = pitch * (height + 2);
  const uint64_t whole_pitch = static_cast<uint64_t>(columns) * width + 2;
  Fleet fleet(rows * columns, INT32_MAX, 2 * Fleet::measure_workspace(rows * columns, 1, 0));
  std::vector<float> whole(whole_pitch * (static_cast<uint64_t>(rows) * height + 2)), next;
  for (uint64_t i = 0; i < whole.size(); ++i) whole[i] = static_cast<float>(i * i % 97);
  const auto find = [&, columns_ = columns, height_ = height, width_ = width](int32_t rank, uint64_t i) {
    return (static_cast<uint64_t>(rank / columns_) * height_ + i / pitch) * whole_pitch +
           static_cast<uint64_t>(rank % columns_) * width_ + i % pitch;
  };
  for (int32_t rank = 0; rank < fleet.size(); ++rank) {
    for (uint64_t i = 0; i < 2 * plate_cells; ++i)
      fleet.data<float>(rank)[i] = whole[find(rank, i % plate_cells)];
  }
  uint32_t failed = 0;
  // The second launch goes on where the first has ended: an even number of steps.
  World world(5);
  for (int32_t rank = 0; rank < fleet.size(); ++rank) {
    std::vector<int32_t> row, column;
    for (int32_t i = 0; i < columns; ++i) row.push_back(rank / columns * columns + i);
    for (int32_t i = 0; i < rows; ++i) column.push_back(i * columns + rank % columns);
    world.add_grid(static_cast<uint32_t>(rank), 1, kThreads,
                   [&, rank, height_ = height, width_ = width, row_team = fleet.team(rank, 0, row),
                    column_team = fleet.team(rank, 1, column)] {
                     for (int launch = 0; launch < 2; ++launch)
                       halo::diffuse(row_team, column_team, fleet.data<float>(rank), height_, width_, kSteps,
                                     &failed);
                   });
  }
  ASSERT_EQ(world.run(), "");
  EXPECT_EQ(failed, 0U);
  for (uint32_t step = 0; step < 2 * kSteps; ++step, whole.swap(next)) {
    next = whole;
    for (uint64_t i = whole_pitch; i < whole.size() - whole_pitch; ++i) {
      if (i % whole_pitch != 0 && i % whole_pitch != whole_pitch - 1)
        next[i] =
            (whole[i - 1] + whole[i + 1] + whole[i - whole_pitch] + whole[i + whole_pitch] + 4 * whole[i]) /
            8;
    }
  }
  for (int32_t rank = 0; rank < fleet.size(); ++rank) {
    for (uint64_t i = pitch; i < plate_cells - pitch; ++i) {
      if (i % pitch == 0 || i % pitch == pitch - 1) continue;
      ASSERT_EQ(fleet.data<float>(rank)[i], whole[find(rank, i)]) << rank << " " << i;
    }
  }
}

}  // namespace
}  // namespace verbena::device_test
