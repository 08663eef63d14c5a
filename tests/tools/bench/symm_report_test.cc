// The figures of several backends: which rows there are, and what stands in them.
#include "verbena-bench/symm/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "verbena-bench/symm/options.h"

namespace verbena::tools::symm {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

bench::Figures make_figures(std::initializer_list<const char*> lines) {
  bench::Figures figures(1, bench::Figures::Join::kFastest);
  for (const char* line : lines) EXPECT_TRUE(figures.take(line)) << line;
  return figures;
}

TEST(SymmResultTest, ATableForEachKindOfFigure) {
  const std::vector<BackendFigures> all = {
      {"nccl",
       make_figures({"figure barrier/32 3 1 2", "figure put/16 0.004 0.008", "figure one/1024/4x64 7 9 8",
                     "figure one/4096/4x64 9", "figure two/1024/2x64 6"})},
      {"verbena", make_figures({"figure barrier/32 1.5", "figure rate/4 0.5", "figure one/1024/2x64 5"})}};
  const std::vector<ResultTable> tables = list_result_tables(all);
  ASSERT_EQ(tables.size(), 4U);
  EXPECT_EQ(tables[0].rows.size(), 2U);
  EXPECT_EQ(tables[0].rows[0]["time_us"], 2);
  EXPECT_EQ(tables[0].rows[0]["time_p99_us"], 3);
  EXPECT_EQ(tables[1].rows[0]["bandwidth_GBps"], 1 / 0.004);
  EXPECT_EQ(tables[1].rows[0]["bandwidth_p99_GBps"], 1 / 0.008);
  EXPECT_EQ(tables[2].rows[0]["rate_millions"], 2);
  ASSERT_EQ(tables[3].rows.size(), 4U);
  EXPECT_EQ(tables[3].rows[0]["time_us"], 8);
  EXPECT_EQ(tables[3].rows[0]["time_p99_us"], 9);
  EXPECT_EQ(tables[3].rows[0]["blocks"], "4x64");
  EXPECT_TRUE(list_result_tables({{"verbena", make_figures({"figure other 1"})}}).empty());
}

TEST(SymmResultTest, BackendsOfTheSameThingAreNeighbours) {
  const std::vector<BackendFigures> all = {
      {"nccl", make_figures({"figure barrier/32 3 1 2", "figure bounce 1", "figure one/1024/4x64 7",
                             "figure one/1024/1x64 8", "figure one/1024/2x64 6"})},
      {"verbena", make_figures({"figure barrier/32 1.5", "figure bounce 2", "figure one/1024/1x64 9"})}};
  const std::vector<ResultTable> tables = list_result_tables(all);
  ASSERT_EQ(tables.size(), 2U);
  const auto list = [&](const ResultTable& table, const char* column) {
    std::vector<std::string> values;
    for (const nlohmann::json& row : table.rows) values.push_back(format_value(row, column));
    return values;
  };
  EXPECT_THAT(list(tables[0], "backend"), ElementsAre("nccl", "verbena", "nccl", "verbena"));
  EXPECT_THAT(list(tables[0], "time_us"), ElementsAre("2", "1.5", "1", "2"));
  EXPECT_THAT(list(tables[1], "blocks"), ElementsAre("2x64", "1x64")) << "the best shape of each";
  const std::string text = format_text(tables[0]);
  EXPECT_THAT(text, HasSubstr("nccl        barrier, a block of 32 threads     2.00     3.00\n"));
}

TEST(SymmOptionsTest, RanksRepeatsAndTimes) {
  const char* arguments[] = {"symm", "-n", "3", "--check", "--repeats", "5", "--timeout", "2m"};
  const auto parsed = parse_options(8, arguments);
  EXPECT_EQ(parsed.exit_status, -1);
  EXPECT_EQ(parsed.options.ranks, 3);
  EXPECT_TRUE(parsed.options.checks_only);
  EXPECT_EQ(parsed.options.repeats, 5U);
  EXPECT_EQ(parsed.options.timeout_s, 120);
}

TEST(SymmOptionsTest, BackendsWithCommas) {
  const char* arguments[] = {"symm", "--backend", "nvshmem,verbena"};
  const auto parsed = parse_options(3, const_cast<char**>(arguments));
  EXPECT_EQ(parsed.exit_status, -1);
  EXPECT_THAT(parsed.options.backends, ElementsAre("nvshmem", "verbena"));
}

TEST(SymmOptionsTest, ABackendThatThereIsNot) {
  const char* arguments[] = {"symm", "--backend", "mpi"};
  EXPECT_GT(parse_options(3, const_cast<char**>(arguments)).exit_status, 0);
}

}  // namespace
}  // namespace verbena::tools::symm
