// Which way a collective is done by what was measured, and how that is told; the tuning file's part for it.
#include "tuner/ops_model.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <optional>
#include <random>

#include "tuner/calibration_file.h"

namespace verbena::tuner {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr OpsKey kKey{"all_reduce", 4, 1, "H200"};

OpsMeasurement make(const char* algorithm, uint32_t threads, std::vector<OpsPoint> points) {
  OpsMeasurement measured;
  measured.operation = "all_reduce";
  measured.algorithm = algorithm;
  measured.gpu = "H200";
  measured.ranks = 4;
  measured.threads = threads;
  measured.points = std::move(points);
  return measured;
}

// One shot is faster up to 128 KiB, two shots behind that.
std::vector<OpsMeasurement> list_measured() {
  return {make("one-shot", 512, {{1024, 1, 3}, {65536, 9, 4}, {262144, 35, 6}}),
          make("two-shot", 256, {{65536, 5, 4.8}, {262144, 18, 5}, {1 << 20, 70, 9}}),
          make("bulk-two-shot", 512, {{1 << 20, 64, 10}, {16 << 20, 128, 80}})};
}

std::vector<std::string> names_of(const std::vector<OpsWay>& ways) {
  std::vector<std::string> names;
  for (const OpsWay& way : ways) names.push_back(way.algorithm);
  return names;
}

TEST(OpsModel, TheFastestComesFirst) {
  const auto at = [](uint64_t bytes) { return names_of(list_ways(list_measured(), kKey, bytes)); };
  EXPECT_THAT(at(1024), ElementsAre("one-shot"));
  EXPECT_THAT(at(65536), ElementsAre("one-shot", "two-shot"));
  EXPECT_THAT(at(262144), ElementsAre("two-shot", "one-shot"));
  EXPECT_THAT(at(1 << 20), ElementsAre("two-shot", "bulk-two-shot"));
  EXPECT_THAT(at(64 << 20), ElementsAre("bulk-two-shot")) << "beyond what was measured";
  EXPECT_THAT(at(16), ElementsAre("one-shot")) << "below it";
}

TEST(OpsModel, TimesAndBlocksBetweenTwoPoints) {
  const OpsWay way = list_ways(list_measured(), kKey, 163840).front();
  EXPECT_EQ(way.algorithm, "two-shot");
  EXPECT_NEAR(way.microseconds, 4.9, 1e-9);
  EXPECT_EQ(way.blocks, 12U) << "half way from 5 to 18, rounded up";
  EXPECT_EQ(way.threads, 256U);
  const OpsWay beyond = list_ways(list_measured(), kKey, 31 << 20).front();
  EXPECT_NEAR(beyond.microseconds, 150, 1e-6) << "on as before";
  EXPECT_EQ(beyond.blocks, 128U);
}

TEST(OpsModel, OnlyWhatIsLikeThis) {
  const auto measured = list_measured();
  EXPECT_THAT(list_ways(measured, {"all_gather", 4, 1, "H200"}, 1024), IsEmpty());
  EXPECT_THAT(list_ways(measured, {"all_reduce", 2, 1, "H200"}, 1024), IsEmpty());
  EXPECT_THAT(list_ways(measured, {"all_reduce", 4, 1, "H100"}, 1024), IsEmpty());
  EXPECT_THAT(list_ways(measured, {"all_reduce", 4, 2, "H200"}, 1024), IsEmpty()) << "between two hosts";
}

// Measurements drawn by chance, of any shape: times that fall, ways that begin late or end early, single
// points.
TEST(OpsTable, FindsWhatTheListHasFirst) {
  std::mt19937 random(7);
  const auto draw = [&](uint32_t first, uint32_t last) {
    return std::uniform_int_distribution<uint32_t>(first, last)(random);
  };
  for (int round = 0; round < 300; ++round) {
    std::vector<OpsMeasurement> measured;
    const uint32_t ways = draw(0, 8);
    for (uint32_t way = 0; way < ways; ++way) {
      std::vector<OpsPoint> points;
      uint64_t bytes = draw(1, 4096);
      for (uint32_t i = draw(1, 6); i > 0; --i, bytes += draw(1, 1 << 20))
        points.push_back({bytes, draw(1, 128), 0.25 * draw(1, 400)});
      measured.push_back(make(draw(0, 3) == 0 ? "direct" : "one-shot", 32 * (way + 1), points));
      if (draw(0, 5) == 0) measured.back().gpu = "H100";
    }
    const auto accept = [](const OpsMeasurement& one) {
      return needs_windows(one.algorithm) ? std::nullopt : std::optional(one.threads / 32);
    };
    const OpsTable table(measured, kKey, accept);
    std::vector<uint64_t> sizes = {0, 1, UINT64_MAX};
    for (const OpsMeasurement& one : measured)
      for (const OpsPoint& point : one.points)
        sizes.insert(sizes.end(), {point.bytes - 1, point.bytes, point.bytes + 1});
    for (int i = 0; i < 50; ++i) sizes.push_back(draw(0, 8 << 20));
    for (int i = 0; i < 50; ++i) sizes.push_back(uint64_t{draw(1, 8 << 20)} << draw(0, 40));
    for (const uint64_t bytes : sizes) {
      const auto found = table.find_fastest(bytes);
      std::vector<OpsWay> listed = list_ways(measured, kKey, bytes);
      std::erase_if(listed, [](const OpsWay& way) { return way.needs_windows(); });
      ASSERT_EQ(found.has_value(), !listed.empty()) << "round " << round << ", " << bytes << " bytes";
      if (!found) continue;
      const double tolerance = 1e-12 * std::max(1000.0, found->microseconds);
      EXPECT_NEAR(found->microseconds, listed.front().microseconds, tolerance)
          << "round " << round << ", " << bytes;
      const auto same = std::find_if(listed.begin(), listed.end(), [&](const OpsWay& way) {
        return way.threads == found->threads && way.blocks == found->blocks;
      });
      ASSERT_NE(same, listed.end());
      EXPECT_EQ(found->number, found->threads / 32);
      EXPECT_NEAR(same->microseconds, found->microseconds, tolerance);
    }
  }
}

TEST(OpsModel, ExplainsItsChoice) {
  const OpsQuestion question{"all_reduce", 262144, 4};
  const std::string told = explain_ways(list_measured(), question, "", "");
  EXPECT_THAT(told, HasSubstr("all_reduce of 262144 bytes by 4 ranks on H200"));
  EXPECT_THAT(told, HasSubstr("two-shot         18 blocks of 256 threads       5.00 us"));
  EXPECT_THAT(told,
              HasSubstr("chosen: two-shot, the fastest in the measurements, 20 % faster than one-shot"));
  EXPECT_THAT(explain_ways(list_measured(), question, "", "one-shot"),
              HasSubstr("chosen: one-shot, by VERBENA_OPS_ALGORITHM, regardless"));
  auto measured = list_measured();
  measured.push_back(make("direct", 512, {{262144, 64, 2}}));
  EXPECT_THAT(
      explain_ways(measured, question, "", ""),
      AllOf(
          HasSubstr(
              "2.00 us, only for tensors in windows, if the call chooses this algorithm or sets has_windows"),
          HasSubstr("chosen: two-shot,")));
  EXPECT_THAT(explain_ways({}, question, "", ""),
              HasSubstr("there are no measurements of all_reduce by 4 ranks"));
}

// Two hosts of two ranks: what is sent, and when lossless is chosen, measured or not.
TEST(OpsModel, ExplainsWhatTravelsBetweenHosts) {
  const OpsQuestion question{"all_reduce", 1 << 20, 4, 2};
  std::vector<OpsMeasurement> measured = list_measured();
  EXPECT_THAT(
      explain_ways(measured, question, "", ""),
      AllOf(HasSubstr("there are no measurements of all_reduce by 4 ranks on 2 hosts: the library's own"),
            HasSubstr("bulk-two-shot sends bfloat16 sums of a host's ranks in 32 bits, lossless in "
                      "about 17 to 21 bits"),
            HasSubstr("VERBENA_OPS_ALGORITHM is lossless, or if the call chooses it")));
  EXPECT_THAT(explain_ways(measured, {"all_reduce", 1 << 20, 2, 2}, "", ""),
              HasSubstr("bfloat16 elements in 16 bits, lossless in about 12 bits"));
  EXPECT_THAT(explain_ways(measured, {"all_gather", 1 << 20, 4, 2}, "", ""),
              HasSubstr("bfloat16 elements in 16 bits, lossless in about 12 bits"));
  EXPECT_THAT(explain_ways(measured, question, "", "lossless"),
              HasSubstr("VERBENA_OPS_ALGORITHM chooses lossless"));
  measured = {make("bulk-two-shot", 512, {{1 << 20, 8, 300}}), make("lossless", 512, {{1 << 20, 8, 200}})};
  for (OpsMeasurement& one : measured) one.hosts = 2;
  EXPECT_THAT(
      explain_ways(measured, question, "", ""),
      AllOf(HasSubstr("all_reduce of 1048576 bytes by 4 ranks on 2 hosts with H200:"),
            HasSubstr("chosen: lossless, the fastest in the measurements, 50 % faster than bulk-two-shot")));
  // Other words of the setting have no effect between hosts, and lossless has none within one.
  EXPECT_THAT(explain_ways(measured, question, "", "one-shot"), HasSubstr("chosen: lossless, the fastest"));
  EXPECT_THAT(explain_ways(measured, question, "", "bulk-two-shot"),
              HasSubstr("chosen: bulk-two-shot, by VERBENA_OPS_ALGORITHM"));
  EXPECT_THAT(explain_ways(list_measured(), {"all_reduce", 262144, 4}, "", "lossless"),
              AllOf(HasSubstr("chosen: two-shot, the fastest"), testing::Not(HasSubstr("hosts"))));
}

TEST(OpsModel, Questions) {
  std::string problem;
  const auto question = parse_question("all_reduce:512k:4", problem);
  ASSERT_TRUE(question);
  EXPECT_EQ(question->operation, "all_reduce");
  EXPECT_EQ(question->bytes, 512U << 10);
  EXPECT_EQ(question->ranks, 4U);
  EXPECT_EQ(question->hosts, 1U);
  const auto between = parse_question("all_reduce:1m:4x2", problem);
  ASSERT_TRUE(between);
  EXPECT_EQ(between->ranks, 4U);
  EXPECT_EQ(between->hosts, 2U);
  for (const char* wrong :
       {"", "all_reduce", "all_reduce:512k", ":512k:4", "all_reduce:x:4", "all_reduce:0:4", "all_reduce:5q:4",
        "all_reduce:99999999999g:4", "all_reduce:1k:1", "all_reduce:1k:4000", "all_reduce:1k:4x3",
        "all_reduce:1k:4x", "all_reduce:1k:4x0", "all_reduce:1k:x2", "all_reduce:1k:4x2x2"}) {
    EXPECT_FALSE(parse_question(wrong, problem)) << wrong;
    EXPECT_THAT(problem, HasSubstr("OPERATION:BYTES:RANKS"));
  }
}

TEST(OpsModel, TheTuningFileKeepsThem) {
  Calibration calibration;
  put_ops_measurements(calibration, list_measured());
  const auto read = parse_calibration(format_calibration(calibration));
  ASSERT_TRUE(read.calibration) << read.problem;
  EXPECT_EQ(*read.calibration, calibration);
  // Newer ones of the same kind take the place of all of them, and of no others.
  auto other = make("one-shot", 128, {{1024, 1, 2}});
  put_ops_measurements(calibration, {other});
  EXPECT_THAT(calibration.ops, ElementsAre(other));
  other.ranks = 2;
  put_ops_measurements(calibration, {other});
  EXPECT_EQ(calibration.ops.size(), 2U);
  // Between hosts there are other times.
  other.hosts = 2;
  put_ops_measurements(calibration, {other});
  EXPECT_EQ(calibration.ops.size(), 3U);
  const auto with_hosts = parse_calibration(format_calibration(calibration));
  ASSERT_TRUE(with_hosts.calibration) << with_hosts.problem;
  EXPECT_EQ(*with_hosts.calibration, calibration);
  EXPECT_NE(compute_fingerprint(calibration), compute_fingerprint({}));
}

TEST(OpsModel, RefusesADamagedFile) {
  const auto problem_of = [](const std::string& entry) {
    return parse_calibration(R"({"format": "verbena-tuning", "version": 1, "ops": [)" + entry + "]}").problem;
  };
  const std::string begin =
      R"({"operation": "all_reduce", "algorithm": "one-shot", "gpu": "H200", "ranks": 4, "threads": 128, "chunk_bytes": 0, "points": )";
  EXPECT_EQ(problem_of(begin + "[[1024, 1, 2.5]]}"), "");
  EXPECT_EQ(problem_of(begin + "[]}"), "ops[0].points is not a list of 1 to 256 points");
  EXPECT_EQ(problem_of(begin + "[[1024, 1]]}"),
            "ops[0].points[0] is not of the form [bytes, blocks, microseconds]");
  EXPECT_EQ(problem_of(begin + "[[1024, 1, 2], [1024, 1, 2]]}"),
            "ops[0].points[1] has a size that is not larger than the size of the previous point");
  EXPECT_EQ(problem_of(begin + "[[1024, 1, -2]]}"), "ops[0].points[0] has a time that is out of range");
  EXPECT_EQ(problem_of(begin + "[[1024, 1, 2]]}, " + begin + "[[1024, 1, 2]]}"),
            "ops[1] repeats an earlier entry");
  const auto between = [&](const char* hosts) {
    return problem_of(begin + "[[1024, 1, 2]], \"hosts\": " + hosts + "}, " + begin + "[[1024, 1, 2]]}");
  };
  EXPECT_EQ(between("2"), "");
  EXPECT_EQ(between("1"), "ops[1] repeats an earlier entry");
  EXPECT_EQ(between("3"), "ops[0].hosts does not divide ranks");
  EXPECT_THAT(between("0"), HasSubstr("ops[0].hosts"));
}

}  // namespace
}  // namespace verbena::tuner
