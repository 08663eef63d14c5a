#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "verbena-bench/unpack/report.h"

namespace verbena::tools::unpack {
namespace {

Figure make_figure(Mover mover, double gbps, uint64_t wrong_bytes = 0) {
  Figure figure;
  figure.mover = mover;
  figure.gbps = figure.best_gbps = gbps;
  figure.p99_gbps = gbps - 20;
  figure.finding = {wrong_bytes, "the first somewhere"};
  return figure;
}

void add_cases(Report& report) {
  TestCase test_case;
  report.add_case(test_case, {make_figure(Mover::kRegisters, 320), make_figure(Mover::kCopy, 400)});
  test_case.blocks = 132;
  test_case.pages = {PageLengths::Kind::kMixed, 0};
  report.add_case(test_case, {make_figure(Mover::kRegisters, 1900), make_figure(Mover::kNccl, 1400),
                              make_figure(Mover::kCopy, 2000)});
}

TEST(Report, PrintsFiguresBesideTheCopy) {
  testing::internal::CaptureStdout();
  Report report(true);
  report.begin("Some GPU", 132, 50 << 20);
  add_cases(report);
  report.finish();
  const std::string text = testing::internal::GetCapturedStdout();
  EXPECT_THAT(text,
              testing::HasSubstr("gpu registers    320.0    40.00    300.0    320.0     0.80        0"));
  EXPECT_NE(text.find("0 wrong bytes"), std::string::npos) << text;
  Result result;
  report.fill(result);
  ASSERT_EQ(result.tables.size(), 2U);
  const nlohmann::json& nccl = result.tables[1].rows[1];
  EXPECT_EQ(nccl["page"], "mixed");
  EXPECT_EQ(nccl["kernel"], "nccl");
  EXPECT_DOUBLE_EQ(nccl["of_copy"], 0.7);
  EXPECT_NE(text.find("1    gpu      nccl"), std::string::npos) << "one message a call:\n" << text;
  EXPECT_NE(text.find("-    gpu      copy"), std::string::npos) << text;
}

TEST(Report, ACheckPrintsOnlyWhatIsWrong) {
  testing::internal::CaptureStdout();
  Report report(false);
  report.begin("Some GPU", 132, 50 << 20);
  report.add_case({}, {make_figure(Mover::kRegisters, 0)});
  report.add_case({}, {make_figure(Mover::kBulk, 0, 17)});
  report.finish();
  const std::string text = testing::internal::GetCapturedStdout();
  EXPECT_EQ(report.wrong_bytes(), 17U);
  EXPECT_THAT(
      text, testing::HasSubstr("# WRONG: 8x512 4K/512K +0/+0 by 1 gpu, bulk: 17 bytes, the first somewhere"));
  EXPECT_NE(text.find("# 2 runs checked, 17 wrong bytes"), std::string::npos) << text;
  EXPECT_EQ(text.find("registers"), std::string::npos) << text;
}

TEST(Report, StoresATableForEachNumberOfBlocks) {
  testing::internal::CaptureStdout();
  Report report(true, true);
  report.begin("Some GPU", 132, 50 << 20);
  add_cases(report);
  LatencyFigure latency;
  latency.threads = 256;
  latency.message_bytes = 4096;
  latency.median_us = 1.5;
  latency.p99_us = 2.5;
  report.add_latency(latency);
  report.add_case({}, {make_figure(Mover::kBulk, 0)});
  report.finish();
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "") << "it is quiet";
  Result result;
  report.fill(result);
  ASSERT_EQ(result.tables.size(), 3U);
  EXPECT_EQ(result.tables[0].name, "unpacking, 8 blocks");
  EXPECT_EQ(result.tables[1].name, "unpacking, 132 blocks");
  EXPECT_EQ(result.tables[2].rows[0]["p99_us"], 2.5);
  EXPECT_EQ(result.tables[1].rows.size(), 3U);
  EXPECT_EQ(result.tables[0].rows[0]["p99_gbps"], 300);
  EXPECT_FALSE(result.tables[0].rows[2].contains("gbps")) << "checked, not timed";
  EXPECT_EQ(result.setup["L2 cache"], "50MB");
}

TEST(Latency, IsCountedInCyclesAndToldInMicroseconds) {
  // A clock of 1 us steps beside 2 cycles a nanosecond.
  std::vector<LatencySample> samples;
  for (uint64_t index = 0; index < 100; ++index) {
    const uint64_t begin_ns = index * 10000;
    const uint64_t took_ns = index < 10 ? 9000 : 1000 + 10 * (index % 10);  // the first are not counted
    samples.push_back({begin_ns, begin_ns + took_ns / 1000 * 1000, begin_ns * 2, (begin_ns + took_ns) * 2});
  }
  samples.back().end_ns = samples.back().end_cycles / 2;
  LatencyFigure figure;
  summarize_samples(samples, figure);
  EXPECT_NEAR(figure.min_us, 1.0, 1e-9);
  EXPECT_NEAR(figure.median_us, 1.04, 1e-9);
  EXPECT_NEAR(figure.p90_us, 1.08, 1e-9);
  EXPECT_NEAR(figure.clock_median_us, 1.0, 1e-9);
}

}  // namespace
}  // namespace verbena::tools::unpack
