// Which plots a table makes, and what gnuplot makes of them.
#include "common/plot.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iterator>

#include "base/scratch_path.h"
#include "common/error.h"

namespace verbena::tools {
namespace {

using Role = ResultColumn::Role;

ResultTable make_table() {
  ResultTable table{"all_reduce",
                    {{"variant", "variant", "", Role::kKey},
                     {"size_bytes", "size", "B", Role::kKey},
                     {"time_us", "time", "us", Role::kLower, "median", true},
                     {"time_p99_us", "time p99", "us", Role::kLower, "p99", true},
                     {"busbw_GBps", "busbw", "GB/s", Role::kHigher, "median", true}}};
  for (const char* variant : {"plugin", "it's _other_"}) {
    for (const int size : {8, 4096, 1 << 20}) {
      table.rows.push_back({{"variant", variant},
                            {"size_bytes", size},
                            {"time_us", 5.0 + size / 1000},
                            {"time_p99_us", 9.0 + size / 1000},
                            {"busbw_GBps", size / 2000.0}});
    }
  }
  return table;
}

ResultTable make_bars() {
  ResultTable table{"unpacking",
                    {{"page", "page", "B", Role::kKey},
                     {"kernel", "kernel", "", Role::kKey, "", true},
                     {"all_GBps", "in all", "GB/s", Role::kHigher, "median", true}}};
  for (const char* page : {"4K", "mixed"}) {
    for (const char* kernel : {"bulk", "copy"})
      table.rows.push_back({{"page", page}, {"kernel", kernel}, {"all_GBps", 100}});
  }
  return table;
}

std::string read_file(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(Plot, ThereIsOneForEachUnit) {
  const std::vector<Plot> plots = list_plots(make_table());
  ASSERT_EQ(plots.size(), 2U);
  EXPECT_EQ(plots[0].title, "all_reduce");
  EXPECT_EQ(plots[0].x_label, "size (B)");
  EXPECT_EQ(plots[0].y_label, "time (us)");
  ASSERT_EQ(plots[0].series.size(), 4U) << "median and p99 of both variants";
  EXPECT_EQ(plots[0].series[0].name, "plugin, time");
  EXPECT_EQ(plots[0].series[1].name, "plugin, time p99");
  EXPECT_EQ(plots[0].series[0].color, plots[0].series[1].color) << "of one variant";
  EXPECT_NE(plots[0].series[0].color, plots[0].series[2].color);
  EXPECT_FALSE(plots[0].series[0].is_dashed);
  EXPECT_TRUE(plots[0].series[1].is_dashed);
  EXPECT_EQ(plots[1].y_label, "busbw (GB/s)");
  ASSERT_EQ(plots[1].series.size(), 2U);
  EXPECT_EQ(plots[1].series[0].name, "plugin");
  EXPECT_EQ(plots[1].series[0].x, (std::vector<double>{8, 4096, 1 << 20}));
}

TEST(Plot, WithoutSizesItHasBars) {
  const std::vector<Plot> plots = list_plots(make_bars());
  ASSERT_EQ(plots.size(), 1U);
  EXPECT_EQ(plots[0].categories, (std::vector<std::string>{"4K", "mixed"}));
  ASSERT_EQ(plots[0].series.size(), 2U);
  EXPECT_EQ(plots[0].series[1].name, "copy");
  EXPECT_EQ(plots[0].series[1].x, (std::vector<double>{0, 1}));
  EXPECT_TRUE(list_plots({"none", {}}).empty());
}

TEST(Plot, AxesAreLogarithmicAndLabelled) {
  const std::string program = write_plot_program(list_plots(make_table()), "it's.svg", 2, true);
  for (const char* words :
       {"set output 'it''s.svg'", "set logscale x 2", "set logscale y 10", "'4K' 4096", "'1M' 1.04858e+06",
        "set key below", "set key below", "'time (us)'", "'it''s _other_, time p99'", "layout 1,2"})
    EXPECT_NE(program.find(words), std::string::npos) << words << " in\n" << program;
}

TEST(Plot, TheLastOfManySizesIsLabelled) {
  ResultTable table = make_table();
  table.rows.clear();
  for (int shift = 0; shift <= 24; ++shift)
    table.rows.push_back({{"variant", "plugin"}, {"size_bytes", 8 << shift}, {"busbw_GBps", 1}});
  const std::string program = write_plot_program(list_plots(table), "out.svg", 2, true);
  EXPECT_NE(program.find("'128M' "), std::string::npos) << program;
  EXPECT_EQ(program.find("'64M' "), std::string::npos) << "too many to label all:\n" << program;
  EXPECT_NE(program.find("unset key"), std::string::npos) << "one line needs none:\n" << program;
}

TEST(Plot, IsDrawnByGnuplot) {
  if (!find_plot_problem().empty()) GTEST_SKIP() << find_plot_problem();
  const verbena::tests::ScratchPath scratch("plot.svg");
  std::vector<Plot> plots = list_plots(make_table());
  plots.push_back(list_plots(make_bars())[0]);
  draw_plots(plots, scratch.get(), 2);
  const std::string picture = read_file(scratch.get());
  for (const char* words : {"<svg", "size (B)", "busbw (GB/s)", "plugin, time p99", "_other_", "mixed", "1M"})
    EXPECT_NE(picture.find(words), std::string::npos) << words;
  EXPECT_THROW(draw_plots(plots, "/nonexistent/file.svg", 2), ToolError);
  EXPECT_THROW(draw_plots({}, scratch.get(), 2), ToolError);
}

TEST(Plot, WithoutGnuplotItSaysWhatToInstall) {
  const std::string path = std::getenv("PATH");
  setenv("PATH", "/nonexistent", 1);
  const std::string problem = find_plot_problem();
  EXPECT_THROW(draw_plots(list_plots(make_table()), "/tmp/never.svg", 2), ToolError);
  setenv("PATH", path.c_str(), 1);
  EXPECT_NE(problem.find("gnuplot-nox"), std::string::npos);
}

}  // namespace
}  // namespace verbena::tools
