// A result beside a stored one: which rows belong together, what is better, what is judged.
#include "common/result_comparison.h"

#include <gtest/gtest.h>

namespace verbena::tools {
namespace {

using Role = ResultColumn::Role;

nlohmann::json make_row(const char* kind, int size, double time_us, double speed, double p99_us = 9) {
  return {{"kind", kind}, {"size_bytes", size}, {"time_us", time_us}, {"p99_us", p99_us}, {"speed", speed}};
}

Result make_result(std::vector<nlohmann::json> rows) {
  Result result;
  result.source = "old.json";
  result.machine = {{"host", "here"}, {"cpu", "one"}};
  result.tables.push_back({"messages",
                           {{"kind", "kind", "", Role::kKey},
                            {"size_bytes", "size", "B", Role::kKey},
                            {"time_us", "time", "us", Role::kLower, "median", true},
                            {"p99_us", "p99", "us", Role::kLower, "p99", true},
                            {"speed", "speed", "GB/s", Role::kHigher, "median", true}},
                           std::move(rows)});
  return result;
}

TEST(ResultComparison, MatchesRowsByKeysAndKnowsWhatIsBetter) {
  const Result then =
      make_result({make_row("b", 8, 1, 1), make_row("a", 64, 30, 10), make_row("a", 8, 10, 5)});
  const Result now =
      make_result({make_row("a", 8, 20, 5), make_row("a", 16, 1, 1), make_row("a", 64, 10, 40)});
  const ResultComparison comparison(now, then);
  EXPECT_EQ(comparison.count_rows(), 2U);
  EXPECT_DOUBLE_EQ(comparison.least_ratio(), 0.5) << "twice the time";
  EXPECT_EQ(comparison.least_row(), "messages, time of a, 8");
  const std::string text = comparison.format();
  EXPECT_NE(text.find("20.00     10.00     0.50"), std::string::npos) << text;
  EXPECT_NE(text.find("40.00     10.00     4.00"), std::string::npos) << text;
  EXPECT_EQ(text.find(" 16 "), std::string::npos) << "only what both have:\n" << text;
  EXPECT_EQ(text.find("MACHINE"), std::string::npos) << text;
}

TEST(ResultComparison, OnlyMediansAreJudged) {
  const ResultComparison comparison(make_result({make_row("a", 8, 10, 5, 900)}),
                                    make_result({make_row("a", 8, 10, 5, 9)}));
  EXPECT_DOUBLE_EQ(comparison.least_ratio(), 1);
  EXPECT_NE(comparison.format().find("0.01"), std::string::npos) << comparison.format();
}

TEST(ResultComparison, SaysWhenItIsOfAnotherMachine) {
  Result then = make_result({make_row("a", 8, 1, 1)});
  then.machine["cpu"] = "two";
  const std::string text = ResultComparison(make_result({make_row("a", 8, 1, 1)}), then).format();
  EXPECT_NE(text.find("NOT THE SAME MACHINE: cpu one, then two"), std::string::npos) << text;
}

TEST(ResultComparison, WhatHasNothingInCommonSaysSo) {
  const ResultComparison comparison(make_result({make_row("a", 8, 1, 1)}),
                                    make_result({make_row("a", 16, 1, 1)}));
  EXPECT_EQ(comparison.count_rows(), 0U);
  EXPECT_EQ(comparison.least_ratio(), 0);
  EXPECT_NE(comparison.format().find("nothing to compare"), std::string::npos);
  EXPECT_EQ(ResultComparison(make_result({}), Result{}).count_rows(), 0U);
}

TEST(ResultComparison, AMissingFigureHasNoRatio) {
  nlohmann::json row = make_row("a", 8, 1, 1);
  row.erase("time_us");
  const ResultComparison comparison(make_result({row}), make_result({make_row("a", 8, 1, 2)}));
  EXPECT_EQ(comparison.count_rows(), 1U);
  EXPECT_DOUBLE_EQ(comparison.least_ratio(), 0.5) << "of the speed";
}

}  // namespace
}  // namespace verbena::tools
