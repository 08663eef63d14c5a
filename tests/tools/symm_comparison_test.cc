// The figures of several backends: which rows there are, and what stands in them.
#include "verbena-bench/symm/figures.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "verbena-bench/symm/options.h"

namespace verbena::tools::symm {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

Figures make_figures(std::initializer_list<const char*> lines) {
  Figures figures;
  for (const char* line : lines) EXPECT_TRUE(figures.take(line)) << line;
  return figures;
}

std::vector<std::string> split_words(const std::string& text, const std::string& begin) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.find(begin) == std::string::npos) continue;
    std::istringstream words(line.substr(line.find(begin) + begin.size()));
    std::vector<std::string> found;
    for (std::string word; words >> word;) found.push_back(word);
    return found;
  }
  return {};
}

TEST(SymmComparisonTest, AColumnForEachBackendInTheOrderGiven) {
  const std::vector<BackendFigures> all = {
      {"nccl", make_figures({"figure barrier/32 3 1 2", "figure one/1024/4x64 7", "figure one/1024/2x64 6"})},
      {"verbena", make_figures({"figure barrier/32 1.5", "figure bounce 2"})}};
  const std::string text = format_comparison(all, 4);
  EXPECT_THAT(text, HasSubstr("4 ranks"));
  EXPECT_LT(text.find("nccl"), text.find("verbena"));
  EXPECT_THAT(split_words(text, "a block of 32 threads"), ElementsAre("us", "2.00", "1.50"));
  EXPECT_THAT(split_words(text, "one way"), ElementsAre("us", "-", "2.00"));
  EXPECT_THAT(split_words(text, "1024 bytes, one shot"), ElementsAre("us", "6.00", "-")) << "the best shape";
  EXPECT_THAT(text, Not(HasSubstr("two shots"))) << "nobody has any";
}

TEST(SymmComparisonTest, PutsAreShownAsBandwidth) {
  // Microseconds for 1000 bytes.
  const std::vector<BackendFigures> all = {
      {"verbena", make_figures({"figure put/16 0.004", "figure put/132 0.0025"})}};
  EXPECT_THAT(split_words(format_comparison(all, 2), "(16 MiB by a network)"), ElementsAre("GB/s", "400.0"));
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

TEST(SymmFiguresTest, TheTableHasMediansAndP99) {
  const std::string text = make_figures({"figure barrier/32 3 1 2", "figure one/1024/4x64 7 9 8",
                                         "figure packets/1024/1x64 4 5 3", "figure packets/1024/2x64 6 6 6"})
                               .format_table(2);
  EXPECT_THAT(split_words(text, "a block of 32 threads"), ElementsAre("2.00", "us,", "p99", "3.00"));
  EXPECT_THAT(split_words(text, "1024"),
              ElementsAre("8.00", "9.00", "4x64", "-", "-", "-", "4.00", "5.00", "1x64"));
}

TEST(SymmOptionsTest, OldAndNewSpellings) {
  const char* arguments[] = {"verbena-symm", "-n", "3", "--checks-only", "--rounds", "5", "--timeout", "2m"};
  const ParsedOptions parsed = parse_options(8, const_cast<char**>(arguments));
  EXPECT_EQ(parsed.exit_status, -1);
  EXPECT_EQ(parsed.options.ranks, 3);
  EXPECT_TRUE(parsed.options.checks_only);
  EXPECT_EQ(parsed.options.repeats, 5U);
  EXPECT_EQ(parsed.options.timeout_s, 120);
}

TEST(SymmOptionsTest, BackendsWithCommas) {
  const char* arguments[] = {"verbena-symm", "--backend", "nvshmem,verbena"};
  const ParsedOptions parsed = parse_options(3, const_cast<char**>(arguments));
  EXPECT_EQ(parsed.exit_status, -1);
  EXPECT_THAT(parsed.options.backends, ElementsAre("nvshmem", "verbena"));
}

TEST(SymmOptionsTest, ABackendThatThereIsNot) {
  const char* arguments[] = {"verbena-symm", "--backend", "mpi"};
  EXPECT_GT(parse_options(3, const_cast<char**>(arguments)).exit_status, 0);
}

}  // namespace
}  // namespace verbena::tools::symm
