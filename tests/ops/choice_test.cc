// How calls are done: tables of platforms, operations and sizes, with the algorithm and the grid that the
// chooser has to name.
#include "device/ops/choice.h"

#include <gtest/gtest.h>

#include <ostream>

#include "verbena/verbena.hpp"

namespace verbena::ops {

bool operator==(const Grid& a, const Grid& b) {
  return a.blocks == b.blocks && a.threads == b.threads && a.cluster == b.cluster && a.rows == b.rows;
}
void PrintTo(const Grid& grid, std::ostream* out) {
  *out << grid.blocks << " blocks of " << grid.threads << " threads, clusters of " << grid.cluster << ", "
       << grid.rows << " rows at a time";
}

namespace {

constexpr uint64_t kKi = 1 << 10, kMi = 1 << 20;

// GPUs of one host, as H200s are: 132 multiprocessors, and the workspace that a communicator makes there.
Platform platform_of(uint32_t ranks) {
  Platform platform;
  platform.ranks = ranks;
  platform.blocks = kDefaultBlocks;
  platform.packet_slot_bytes = (uint64_t{128} << 20) / kDefaultBlocks / (2 * ranks);
  platform.has_clusters = true;
  return platform;
}
Chooser chooser_of(uint32_t ranks) {
  return Chooser(platform_of(ranks), {}, "");
}

TEST(ChoiceTest, RulesChooseByOperationRanksAndSize) {
  constexpr auto kReduce = VERBENA_OPS_ALL_REDUCE;
  constexpr auto kGather = VERBENA_OPS_ALL_GATHER;
  constexpr auto kBroadcast = VERBENA_OPS_BROADCAST;
  const struct {
    uint32_t ranks;
    verbena_ops_operation operation;
    uint64_t bytes;
    Algorithm algorithm;
    Grid grid;
  } kRows[] = {
      {2, kReduce, 0, Algorithm::kOneShot, {1, 32}},
      {2, kReduce, 1 * kKi, Algorithm::kOneShot, {1, 64}},
      {2, kReduce, 64 * kKi, Algorithm::kOneShot, {32, 128}},
      {2, kReduce, 512 * kKi, Algorithm::kOneShot, {128, 256}},
      {2, kReduce, 2 * kMi, Algorithm::kOneShot, {128, 512}},
      {2, kReduce, 2 * kMi + 16, Algorithm::kTwoShot, {64, 512}},
      {2, kReduce, 64 * kMi, Algorithm::kTwoShot, {128, 512}},
      {2, kReduce, 64 * kMi + 16, Algorithm::kBulkOneShot, {256, 256}},
      {4, kReduce, 256 * kKi, Algorithm::kOneShot, {128, 128}},
      {4, kReduce, 256 * kKi + 16, Algorithm::kTwoShot, {17, 256}},
      {4, kReduce, 1 * kMi, Algorithm::kTwoShot, {64, 256}},
      {4, kReduce, 64 * kMi, Algorithm::kTwoShot, {128, 512}},
      {4, kReduce, 64 * kMi + 16, Algorithm::kBulkTwoShot, {256, 256}},
      {8, kReduce, 128 * kKi, Algorithm::kOneShot, {64, 128}},
      {8, kReduce, 128 * kKi + 16, Algorithm::kTwoShot, {9, 128}},
      {8, kReduce, 256 * kKi, Algorithm::kTwoShot, {16, 128}},
      {8, kReduce, 64 * kMi, Algorithm::kTwoShot, {128, 512}},
      {8, kReduce, 64 * kMi + 16, Algorithm::kBulkTwoShot, {256, 256}},
      {16, kReduce, 64 * kKi, Algorithm::kOneShot, {32, 128}},
      {16, kReduce, 64 * kKi + 16, Algorithm::kTwoShot, {3, 128}},
      {2, kGather, 1 * kKi, Algorithm::kOneShot, {1, 64}},
      {2, kGather, 48 * kMi, Algorithm::kOneShot, {128, 512}},
      {2, kGather, 48 * kMi + 16, Algorithm::kBulkOneShot, {256, 256}},
      {4, kGather, 1 * kKi, Algorithm::kOneShot, {2, 96}},
      {4, kGather, 16 * kMi, Algorithm::kOneShot, {128, 512}},
      {4, kGather, 16 * kMi + 16, Algorithm::kBulkOneShot, {256, 256}},
      {8, kGather, 48 * kMi / 7, Algorithm::kOneShot, {128, 512}},
      {8, kGather, 48 * kMi / 7 + 1, Algorithm::kBulkOneShot, {256, 256}},
      {4, kBroadcast, 2 * kMi, Algorithm::kOneShot, {128, 512}},
      {4, kBroadcast, 2 * kMi + 16, Algorithm::kBulkTwoShot, {256, 256}},
      {2, kBroadcast, 2 * kMi + 16, Algorithm::kOneShot, {128, 512}},
  };
  for (const auto& row : kRows) {
    const Choice choice = chooser_of(row.ranks).choose(row.operation, row.bytes, {});
    EXPECT_EQ(choice.algorithm, row.algorithm)
        << row.ranks << " ranks, operation " << row.operation << ", " << row.bytes << " bytes";
    EXPECT_EQ(choice.grid, row.grid) << row.ranks << " ranks, operation " << row.operation << ", "
                                     << row.bytes << " bytes";
  }
}

TEST(ChoiceTest, LongTensorsInWindowsAreSummedWhereTheyLie) {
  const Chooser chooser = chooser_of(4);
  EXPECT_EQ(chooser.choose(VERBENA_OPS_ALL_REDUCE, 64 * kMi, {true}).algorithm, Algorithm::kTwoShot);
  const Choice choice = chooser.choose(VERBENA_OPS_ALL_REDUCE, 64 * kMi + 16, {true});
  EXPECT_EQ(choice.algorithm, Algorithm::kDirect);
  EXPECT_EQ(choice.grid, (Grid{128, 512}));
}

TEST(ChoiceTest, ASettingChoosesTheAlgorithmOfEveryCall) {
  Platform platform = platform_of(4);
  platform.forced = Algorithm::kTwoShot;
  const Chooser chooser(platform, {}, "");
  EXPECT_TRUE(chooser.is_forced());
  EXPECT_EQ(chooser.choose(VERBENA_OPS_ALL_REDUCE, 64, {}).algorithm, Algorithm::kTwoShot);
  EXPECT_EQ(chooser.choose_quantised(Algorithm::kFloat8, 64 * kMi).algorithm, Algorithm::kTwoShot);
}

TEST(ChoiceTest, QuantisedFromTheSizeOnAtWhichItPays) {
  const struct {
    Algorithm codec;
    uint64_t first_bytes;
    Grid of_2, of_4;
  } kRows[] = {
      {Algorithm::kFloat8, 2 * kMi, {128, 128}, {128, 256}},
      {Algorithm::kInt8, 4 * kMi, {128, 256}, {128, 512}},
      {Algorithm::kInt4, 2 * kMi, {128, 128}, {128, 256}},
      {Algorithm::kFloat8Int8, 4 * kMi, {128, 512}, {128, 512}},
      {Algorithm::kInt4Int8, 4 * kMi, {128, 512}, {128, 512}},
  };
  for (const auto& row : kRows) {
    for (const uint32_t ranks : {2U, 4U}) {
      const Chooser chooser = chooser_of(ranks);
      EXPECT_FALSE(is_coded(chooser.choose_quantised(row.codec, row.first_bytes - 1).algorithm));
      const Choice choice = chooser.choose_quantised(row.codec, row.first_bytes);
      EXPECT_EQ(choice.algorithm, row.codec);
      EXPECT_EQ(choice.grid, ranks == 2 ? row.of_2 : row.of_4) << find_codec(row.codec);
    }
  }
}

tuner::OpsMeasurement measured(const char* operation, const char* algorithm, double microseconds,
                               uint32_t threads = 64) {
  return {operation, algorithm, "GPU", 4, threads, 0, {{64, 2, microseconds}, {kMi, 200, microseconds}}};
}

TEST(ChoiceTest, TheFastestThatWasMeasuredOnThisGpu) {
  const std::vector<tuner::OpsMeasurement> measurements = {
      measured("all_reduce", "two-shot", 3), measured("all_reduce", "bulk-two-shot", 2),
      measured("all_reduce", "direct", 1), measured("all_reduce", "one-shot", 0.5, 63)};
  const Chooser chooser(platform_of(4), measurements, "GPU");
  const auto choose = [](const Chooser& from, bool is_in_windows) {
    return from.choose(VERBENA_OPS_ALL_REDUCE, 1 * kKi, {is_in_windows}).algorithm;
  };
  EXPECT_EQ(choose(chooser, false), Algorithm::kBulkTwoShot) << "direct is for windows";
  EXPECT_EQ(choose(chooser, true), Algorithm::kDirect);
  EXPECT_EQ(choose(Chooser(platform_of(4), measurements, "another GPU"), false), Algorithm::kOneShot);
  EXPECT_EQ(choose(Chooser(platform_of(4), measurements, ""), false), Algorithm::kOneShot);
  EXPECT_EQ(choose(Chooser(platform_of(2), measurements, "GPU"), false), Algorithm::kOneShot);
  // More blocks were measured than this communicator has.
  EXPECT_EQ(chooser.choose(VERBENA_OPS_ALL_REDUCE, kMi, {}).grid, (Grid{200, 64}));
  Platform few = platform_of(4);
  few.blocks = 16;
  EXPECT_EQ(Chooser(few, measurements, "GPU").choose(VERBENA_OPS_ALL_REDUCE, kMi, {}).grid, (Grid{32, 64}));
}

TEST(ChoiceTest, QuantisedWhereThatWasMeasuredToBeFaster) {
  for (const double microseconds : {2.0, 4.0}) {
    const std::vector<tuner::OpsMeasurement> measurements = {measured("all_reduce", "two-shot", 3),
                                                             measured("all_reduce_fp8", "fp8", microseconds)};
    const Chooser chooser(platform_of(4), measurements, "GPU");
    EXPECT_EQ(chooser.choose_quantised(Algorithm::kFloat8, 1 * kKi).algorithm,
              microseconds < 3 ? Algorithm::kFloat8 : Algorithm::kTwoShot);
  }
}

TEST(ChoiceTest, ANormIsFusedWhereThatIsFaster) {
  const struct {
    uint32_t ranks;
    uint64_t rows, row_bytes;
    bool is_fused;
  } kRows[] = {
      {2, 1, 16 * kKi, true},      {2, 512, 8 * kKi, true},  {2, 513, 2 * kKi, true},
      {2, 8192, 16 * kKi, true},   {4, 1, 16 * kKi, true},   {4, 21, 16 * kKi, true},
      {4, 22, 16 * kKi, false},    {4, 600, 128, false},     {2, 513, 1 * kKi, true},
      {8, 9, 16 * kKi, true},      {8, 10, 16 * kKi, false}, {4, 0, 0, false},
      {4, 1, 32 * kKi + 2, false}, {2, 513, 1008, false},
  };
  for (const auto& row : kRows) {
    if (row.rows == 0) continue;
    const Chooser chooser = chooser_of(row.ranks);
    const uint64_t bytes = row.rows * row.row_bytes;
    const Choice choice = chooser.choose(VERBENA_OPS_ALL_REDUCE, bytes, {});
    const auto fused = chooser.choose_fused(choice, row.rows, bytes, false);
    EXPECT_EQ(fused.has_value(), row.is_fused)
        << row.ranks << " ranks, " << row.rows << " rows of " << row.row_bytes << " bytes";
  }
  // Who asks for one shot has it fused at any size; of another algorithm there is no fused kernel.
  const Chooser chooser = chooser_of(4);
  EXPECT_TRUE(chooser.choose_fused({Algorithm::kOneShot, {1, 32}, 0}, 8192, 8192 * 16 * kKi, true));
  EXPECT_FALSE(chooser.choose_fused({Algorithm::kTwoShot, {1, 32}, 0}, 1, 16 * kKi, true));
  EXPECT_FALSE(chooser.choose_fused({Algorithm::kFloat8, {1, 32}, 0}, 1, 16 * kKi, false));
}

TEST(ChoiceTest, RowsOfANormAreClustersWhileTheyAreFew) {
  const Chooser chooser = chooser_of(2);
  const struct {
    uint64_t rows, row_bytes;
    std::optional<Grid> grid;
  } kRows[] = {
      {1, 512, Grid{1, 32, 1}},
      {1, 2 * kKi, Grid{2, 64, 2}},
      {1, 16 * kKi, Grid{4, 256, 4}},
      {32, 16 * kKi, Grid{128, 256, 4}},
      {33, 16 * kKi, Grid{66, 512, 2}},
      {65, 16 * kKi, Grid{65, 512, 1}},
      {127, 16 * kKi, Grid{127, 512, 1}},
      {128, 16 * kKi, Grid{128, 512, 2}},
      {512, 16 * kKi, Grid{128, 512, 2}},
      {513, 16 * kKi, Grid{128, 512, 1}},
      {1000, 16 * kKi, Grid{128, 512, 1}},
      {1, 14 * kKi, Grid{4, 224, 4}},
      {300, 14 * kKi, Grid{128, 448, 2}},
      {1000, 14 * kKi, Grid{128, 448, 1}},
      {1000, 10 * kKi, Grid{128, 320, 1}},
      {300, 8 * kKi, Grid{128, 512, 1}},
      // Several rows at a time.
      {127, 2 * kKi, Grid{127, 128, 1}},
      {255, 2 * kKi, Grid{128, 128, 1}},
      {300, 2 * kKi, Grid{128, 256, 1, 2}},
      {1000, 2 * kKi, Grid{128, 512, 1, 4}},
      {1000, 4 * kKi, Grid{128, 512, 1, 2}},
      {255, 5760, Grid{128, 384, 1}},
      {1000, 5760, Grid{128, 384, 1, 2}},
      {1000, 5 * kKi, Grid{128, 480, 1, 3}},
      {1000, 3 * kKi, Grid{128, 480, 1, 5}},
      {1000, 7 * kKi, Grid{128, 448, 1}},
      {10000, 512, Grid{128, 512, 1, 16}},
      {1, 32 * kKi, Grid{4, 512, 4}},
      {1, 32 * kKi + 16, std::nullopt},
      {0, 16 * kKi, std::nullopt},
  };
  for (const auto& row : kRows) {
    EXPECT_EQ(chooser.spread_rows(Algorithm::kOneShot, row.rows, row.row_bytes), row.grid)
        << row.rows << " rows of " << row.row_bytes << " bytes";
  }
  Platform ampere = platform_of(2);
  ampere.has_clusters = false;
  EXPECT_EQ(Chooser(ampere, {}, "").spread_rows(Algorithm::kOneShot, 1, 16 * kKi), (Grid{1, 512, 1}));
  Platform one_block = platform_of(2);
  one_block.blocks = 1;
  EXPECT_EQ(Chooser(one_block, {}, "").spread_rows(Algorithm::kOneShot, 1, 16 * kKi), (Grid{1, 512, 1}));
  EXPECT_FALSE(Chooser(one_block, {}, "").spread_rows(Algorithm::kOneShot, 1, 32 * kKi));
  Platform small = platform_of(2);
  small.packet_slot_bytes = 6 * kKi;
  EXPECT_FALSE(Chooser(small, {}, "").spread_rows(Algorithm::kOneShot, 1000, 16 * kKi));
  EXPECT_FALSE(chooser.spread_rows(Algorithm::kTwoShot, 1, 16 * kKi));
}

TEST(ChoiceTest, ANormThatWaitsForNobodyHasMoreBlocks) {
  const Chooser chooser = chooser_of(4);
  EXPECT_EQ(chooser.spread_norm(5000, true), (Grid{128, 512}));
  EXPECT_EQ(chooser.spread_norm(5000, false), (Grid{1024, 512}));
  EXPECT_EQ(chooser.spread_norm(7, false), (Grid{7, 512}));
}

TEST(ChoiceTest, WhatTheCallerAsksForIsTakenOrRefused) {
  const Chooser chooser = chooser_of(4);
  const Choice chosen{Algorithm::kBulkTwoShot, {256, 256}, 4096};
  const auto ask = [&](const verbena_ops_choice& asked) { return chooser.complete(chosen, &asked); };
  EXPECT_EQ(chooser.complete(chosen, nullptr).grid, chosen.grid);
  EXPECT_EQ(ask({}).chunk_bytes, 4096U);
  // Another algorithm has its own number of blocks, and chunks of its own.
  const Choice other = ask({VERBENA_OPS_ONE_SHOT, 0, 0, 0});
  EXPECT_EQ(other.grid, (Grid{128, 256}));
  EXPECT_EQ(other.chunk_bytes, 0U);
  EXPECT_EQ(ask({VERBENA_OPS_DIRECT, 0, 0, 0}).grid, (Grid{128, 512}));
  EXPECT_EQ(ask({VERBENA_OPS_FP8, 3, 64, 0}).grid, (Grid{3, 64}));
  for (const verbena_ops_choice& asked :
       {verbena_ops_choice{VERBENA_OPS_ONE_SHOT, 129, 0, 0}, verbena_ops_choice{VERBENA_OPS_AUTO, 257, 0, 0},
        verbena_ops_choice{VERBENA_OPS_AUTO, 0, 33, 0}, verbena_ops_choice{VERBENA_OPS_AUTO, 0, 544, 0},
        verbena_ops_choice{VERBENA_OPS_AUTO, 0, 0, 4100},
        verbena_ops_choice{VERBENA_OPS_COPY_ENGINES, 0, 0, 0},
        verbena_ops_choice{static_cast<verbena_ops_algorithm>(7), 0, 0, 0},
        verbena_ops_choice{static_cast<verbena_ops_algorithm>(23), 0, 0, 0}})
    EXPECT_THROW(ask(asked), Failure) << asked.algorithm << ", " << asked.blocks << " blocks";
}

TEST(ChoiceTest, BetweenHostsThereAreChunksAndCodecsOnly) {
  Platform platform = platform_of(4);
  platform.hosts = 2;
  const Chooser chooser(platform, {}, "");
  const struct {
    uint64_t bytes;
    Grid grid;
  } kRows[] = {{0, {1, 32}},        {1 * kKi, {1, 64}},   {64 * kKi, {1, 512}}, {256 * kKi, {4, 512}},
               {1 * kMi, {8, 512}}, {4 * kMi, {16, 512}}, {64 * kMi, {16, 512}}};
  for (const auto& row : kRows) {
    const Choice choice = chooser.choose(VERBENA_OPS_ALL_REDUCE, row.bytes, {});
    EXPECT_EQ(choice.algorithm, Algorithm::kBulkTwoShot);
    EXPECT_EQ(choice.grid, row.grid) << row.bytes;
  }
  EXPECT_EQ(chooser.choose_quantised(Algorithm::kInt4, 16 * kKi - 1).algorithm, Algorithm::kBulkTwoShot);
  EXPECT_EQ(chooser.choose_quantised(Algorithm::kInt4, 16 * kKi).algorithm, Algorithm::kInt4);
  EXPECT_EQ(chooser.max_blocks(Family::kPackets), 16U);
  const verbena_ops_choice one_shot{VERBENA_OPS_ONE_SHOT, 0, 0, 0};
  EXPECT_THROW(chooser.complete(chooser.choose(VERBENA_OPS_ALL_REDUCE, kKi, {}), &one_shot), Failure);
  EXPECT_FALSE(chooser.spread_rows(Algorithm::kOneShot, 1, 16 * kKi));
}

// Clusters have equally many blocks, at most eight. Without clusters, each block makes its own requests.
TEST(ChoiceTest, BetweenHostsBlocksAreFewClusters) {
  Platform platform = platform_of(2);
  platform.hosts = 2;
  const Chooser chooser(platform, {}, "");
  const struct {
    uint32_t blocks;
    Grid grid;
  } kRows[] = {{1, {1, 64, 1}},   {2, {2, 64, 2}},   {8, {8, 64, 8}},   {9, {8, 64, 4}},
               {15, {14, 64, 7}}, {16, {16, 64, 8}}, {19, {18, 64, 6}}, {32, {32, 64, 8}}};
  for (const auto& row : kRows) EXPECT_EQ(chooser.arrange({row.blocks, 64}), row.grid) << row.blocks;
  platform.has_clusters = false;
  const Chooser without(platform, {}, "");
  EXPECT_EQ(without.arrange({15, 64}), (Grid{15, 64, 1}));
}

// Four ranks on two hosts, with a setting.
Platform between_hosts(Algorithm forced = Algorithm::kAuto) {
  Platform platform = platform_of(4);
  platform.hosts = 2;
  platform.forced = forced;
  return platform;
}
constexpr Tensors kBfloat16{false, true}, kOthers{false, false};

TEST(ChoiceTest, LosslessBetweenHostsOnlyAndWhereItIsAskedFor) {
  const Chooser between(between_hosts(), {}, ""), within = chooser_of(4);
  const verbena_ops_choice lossless{VERBENA_OPS_LOSSLESS, 0, 0, 0};
  for (const uint64_t bytes : {1 * kKi, 1 * kMi, 64 * kMi}) {
    for (const auto operation : {VERBENA_OPS_ALL_REDUCE, VERBENA_OPS_ALL_TO_ALL}) {
      const Choice exact = between.choose(operation, bytes, kBfloat16),
                   coded = between.complete(exact, &lossless);
      EXPECT_EQ(exact.algorithm, Algorithm::kBulkTwoShot) << bytes;
      EXPECT_EQ(coded.algorithm, Algorithm::kLossless) << bytes;
      EXPECT_EQ(coded.grid, exact.grid) << bytes;
      const Choice chosen = within.choose(operation, bytes, kBfloat16);
      EXPECT_EQ(within.complete(chosen, &lossless).algorithm, chosen.algorithm) << bytes;
    }
  }
}

TEST(ChoiceTest, ASettingEncodesBfloat16BetweenHosts) {
  const Chooser between(between_hosts(Algorithm::kLossless), {}, "");
  const Chooser plain(between_hosts(), {}, "");
  for (const auto operation : {VERBENA_OPS_ALL_REDUCE, VERBENA_OPS_ALL_GATHER, VERBENA_OPS_BROADCAST}) {
    const Choice choice = between.choose(operation, 1 * kMi, kBfloat16);
    EXPECT_EQ(choice.algorithm, Algorithm::kLossless);
    EXPECT_EQ(choice.grid, plain.choose(operation, 1 * kMi, kBfloat16).grid);
    EXPECT_EQ(between.choose(operation, 1 * kMi, kOthers).algorithm, Algorithm::kBulkTwoShot);
  }
  // A call that names only a shape, or says that it moves bfloat16, leaves the algorithm as it was chosen.
  const Choice chosen = between.choose(VERBENA_OPS_ALL_GATHER, 1 * kMi, kBfloat16);
  for (const auto algorithm : {VERBENA_OPS_AUTO, VERBENA_OPS_AUTO_BFLOAT16}) {
    const verbena_ops_choice asked{algorithm, 3, 64, 0};
    const Choice choice = between.complete(chosen, &asked);
    EXPECT_EQ(choice.algorithm, Algorithm::kLossless);
    EXPECT_EQ(choice.grid, (Grid{3, 64}));
  }
  const verbena_ops_choice bulk{VERBENA_OPS_BULK_TWO_SHOT, 0, 0, 0};
  EXPECT_EQ(between.complete(chosen, &bulk).algorithm, Algorithm::kBulkTwoShot);
  // Within a host nothing is encoded, and nothing is forced.
  Platform platform = platform_of(4);
  platform.forced = Algorithm::kLossless;
  const Chooser within(platform, {}, "");
  EXPECT_FALSE(within.is_forced());
  EXPECT_EQ(within.choose(VERBENA_OPS_ALL_REDUCE, 1 * kKi, kBfloat16).algorithm, Algorithm::kOneShot);
  // Other words of the setting have no effect between hosts.
  const Chooser one_shot(between_hosts(Algorithm::kOneShot), {}, "");
  EXPECT_FALSE(one_shot.is_forced());
  EXPECT_EQ(one_shot.choose(VERBENA_OPS_ALL_REDUCE, 1 * kKi, kBfloat16).algorithm, Algorithm::kBulkTwoShot);
}

tuner::OpsMeasurement measured_between_hosts(const char* operation, const char* algorithm,
                                             std::vector<tuner::OpsPoint> points) {
  return {operation, algorithm, "GPU", 4, 512, 0, std::move(points), 2};
}

// The wire is slow for long tensors, and for short ones encoding takes longer than it saves.
TEST(ChoiceTest, LosslessWhereItWasMeasuredToBeFasterBetweenHosts) {
  const std::vector<tuner::OpsMeasurement> measurements = {
      measured_between_hosts("all_reduce", "bulk-two-shot", {{16 * kKi, 1, 20}, {4 * kMi, 8, 900}}),
      measured_between_hosts("all_reduce", "lossless", {{16 * kKi, 1, 30}, {4 * kMi, 16, 700}}),
      measured_between_hosts("all_gather", "lossless", {{16 * kKi, 1, 1}, {4 * kMi, 16, 1}})};
  const Chooser chooser(between_hosts(), measurements, "GPU");
  const struct {
    verbena_ops_operation operation;
    uint64_t bytes;
    Tensors tensors;
    Algorithm algorithm;
    Grid grid;
  } kRows[] = {
      {VERBENA_OPS_ALL_REDUCE, 64, kBfloat16, Algorithm::kBulkTwoShot, {1, 512}},
      {VERBENA_OPS_ALL_REDUCE, 16 * kKi, kBfloat16, Algorithm::kBulkTwoShot, {1, 512}},
      {VERBENA_OPS_ALL_REDUCE, 64 * kKi, kBfloat16, Algorithm::kBulkTwoShot, {2, 512}},
      {VERBENA_OPS_ALL_REDUCE, 1 * kMi, kBfloat16, Algorithm::kLossless, {5, 512}},
      {VERBENA_OPS_ALL_REDUCE, 64 * kMi, kBfloat16, Algorithm::kLossless, {16, 512}},
      {VERBENA_OPS_ALL_REDUCE, 1 * kMi, kOthers, Algorithm::kBulkTwoShot, {3, 512}},
      // Nothing to compare with was measured: the rules.
      {VERBENA_OPS_ALL_GATHER, 1 * kMi, kBfloat16, Algorithm::kBulkTwoShot, {8, 512}},
      {VERBENA_OPS_BROADCAST, 1 * kMi, kBfloat16, Algorithm::kBulkTwoShot, {8, 512}},
  };
  for (const auto& row : kRows) {
    const Choice choice = chooser.choose(row.operation, row.bytes, row.tensors);
    EXPECT_EQ(choice.algorithm, row.algorithm) << row.operation << ", " << row.bytes << " bytes";
    EXPECT_EQ(choice.grid, row.grid) << row.operation << ", " << row.bytes << " bytes";
  }
  const auto at_1_mib = [](const Chooser& from) {
    return from.choose(VERBENA_OPS_ALL_REDUCE, 1 * kMi, kBfloat16).algorithm;
  };
  EXPECT_EQ(at_1_mib(Chooser(between_hosts(), measurements, "another GPU")), Algorithm::kBulkTwoShot);
  EXPECT_EQ(at_1_mib(Chooser(between_hosts(Algorithm::kBulkTwoShot), measurements, "GPU")),
            Algorithm::kBulkTwoShot);
  Platform four_hosts = between_hosts();
  four_hosts.hosts = 4;
  EXPECT_EQ(at_1_mib(Chooser(four_hosts, measurements, "GPU")), Algorithm::kBulkTwoShot);
  EXPECT_EQ(at_1_mib(Chooser(platform_of(4), measurements, "GPU")), Algorithm::kTwoShot) << "within a host";
}

TEST(ChoiceTest, QuantisedBetweenHostsWhereThatWasMeasuredToBeFaster) {
  for (const double microseconds : {2.0, 4.0}) {
    const std::vector<tuner::OpsMeasurement> measurements = {
        measured_between_hosts("all_reduce", "bulk-two-shot", {{1 * kMi, 8, 3}}),
        measured_between_hosts("all_reduce_fp8", "coded", {{1 * kMi, 4, microseconds}})};
    const Chooser chooser(between_hosts(), measurements, "GPU");
    const Choice choice = chooser.choose_quantised(Algorithm::kFloat8, 1 * kMi);
    EXPECT_EQ(choice.algorithm, microseconds < 3 ? Algorithm::kFloat8 : Algorithm::kBulkTwoShot);
    EXPECT_EQ(choice.grid, (Grid{microseconds < 3 ? 4U : 8U, 512}));
  }
}
TEST(ChoiceTest, QuantisedWithWholeWarpsOnly) {
  for (const uint32_t threads : {48, 1024}) {
    std::vector<tuner::OpsMeasurement> measurements = {
        measured_between_hosts("all_reduce", "bulk-two-shot", {{1 * kMi, 8, 3}}),
        measured_between_hosts("all_reduce_fp8", "coded", {{1 * kMi, 4, 2}})};
    measurements.back().threads = threads;
    const Chooser chooser(between_hosts(), measurements, "GPU");
    EXPECT_EQ(chooser.choose_quantised(Algorithm::kFloat8, 1 * kMi).grid.threads, 512U);
  }
}

// So that kernels of several communicators, which wait for ranks, run beside each other.
TEST(ChoiceTest, NoCommunicatorFillsAGpu) {
  EXPECT_EQ(choose_max_blocks(132, 0), 128U);
  EXPECT_EQ(choose_max_blocks(132, 1), 64U);
  EXPECT_EQ(choose_max_blocks(108, 0), 105U);
  EXPECT_EQ(choose_max_blocks(1, 0), 1U);
  EXPECT_EQ(choose_max_blocks(1, 3), 1U);
}

}  // namespace
}  // namespace verbena::ops
