// What a calibration writes into the tuning file.
#include "verbena-bench/coll/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tuner/ops_model.h"

namespace verbena::tools::coll {
namespace {

using testing::ElementsAre;
using testing::UnorderedElementsAre;

// Each time of a graph with one more operation is larger by the operation's time.
bench::Figures make_figures(std::initializer_list<std::pair<const char*, double>> times_us) {
  bench::Figures figures(4, bench::Figures::Join::kSlowest);
  EXPECT_TRUE(figures.take("gpu GPU"));
  for (const auto& [name, us] : times_us) {
    EXPECT_TRUE(figures.take("figure shorter/" + std::string(name) + " 10"));
    EXPECT_TRUE(figures.take("figure longer/" + std::string(name) + " " + std::to_string(10 + us)));
  }
  return figures;
}

std::vector<std::string> list_algorithms(const std::vector<tuner::OpsMeasurement>& measured) {
  std::vector<std::string> names;
  for (const tuner::OpsMeasurement& one : measured) names.push_back(one.operation + " " + one.algorithm);
  return names;
}

// The lossless operation becomes an algorithm of the plain one, of which the faster one is found by size.
TEST(CollReport, BetweenHostsLosslessIsAnAlgorithmOfTheOperation) {
  const bench::Figures figures =
      make_figures({{"all_reduce/bf16/8192/verbena/bulk-two-shot/1x512", 20},
                    {"all_reduce/bf16/8192/verbena/bulk-two-shot/2x512", 30},
                    {"all_reduce/bf16/8192/verbena/auto", 1},
                    {"all_reduce/bf16/1048576/verbena/bulk-two-shot/8x512", 500},
                    {"all_reduce/f32/1048576/verbena/bulk-two-shot/16x512", 1},
                    {"all_reduce_lossless/bf16/8192/verbena/lossless/0x0", 1},
                    {"all_reduce_lossless/bf16/8192/verbena/lossless/1x512", 25},
                    {"all_reduce_lossless/bf16/1048576/verbena/lossless/16x512", 400},
                    {"all_gather_lossless/f16/8192/verbena/lossless/1x512", 5},
                    {"all_reduce/bf16/8192/nccl/2.28", 2}});
  const std::vector<tuner::OpsMeasurement> measured = Report(figures, 1).list_measurements(2);
  ASSERT_THAT(list_algorithms(measured),
              UnorderedElementsAre("all_reduce bulk-two-shot", "all_reduce lossless"));
  for (const tuner::OpsMeasurement& one : measured) {
    EXPECT_EQ(one.ranks, 4U);
    EXPECT_EQ(one.hosts, 2U);
    EXPECT_EQ(one.gpu, "GPU");
    EXPECT_EQ(one.threads, 512U);
  }
  const auto list = [&](uint64_t bytes) {
    std::vector<std::string> ways;
    for (const tuner::OpsWay& way : tuner::list_ways(measured, {"all_reduce", 4, 2, "GPU"}, bytes))
      ways.push_back(way.algorithm + " " + std::to_string(way.blocks));
    return ways;
  };
  EXPECT_THAT(list(8192), ElementsAre("bulk-two-shot 1", "lossless 1"));
  EXPECT_THAT(list(1 << 20), ElementsAre("lossless 16", "bulk-two-shot 8"));
}

TEST(CollReport, WithinAHostAnyTypeIsMeasured) {
  const bench::Figures figures = make_figures(
      {{"all_reduce/f32/8192/verbena/one-shot/1x512", 3}, {"all_gather/i32/8192/verbena/one-shot/1x512", 4}});
  const std::vector<tuner::OpsMeasurement> measured = Report(figures, 1).list_measurements(1);
  EXPECT_THAT(list_algorithms(measured), UnorderedElementsAre("all_reduce one-shot", "all_gather one-shot"));
  for (const tuner::OpsMeasurement& one : measured) EXPECT_EQ(one.hosts, 1U);
}

}  // namespace
}  // namespace verbena::tools::coll
