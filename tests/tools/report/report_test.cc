// The page of stored results: which results are in it, what stands beside what, what of it is HTML.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/scratch_path.h"
#include "common/error.h"
#include "common/plot.h"
#include "report/collection.h"
#include "report/html.h"
#include "report/page.h"

namespace verbena::tools::report {
namespace {

using Role = ResultColumn::Role;

Result make_result(const std::string& started, double time_us, std::vector<int> sizes = {8, 4096}) {
  Result result;
  result.tool = "verbena-perf";
  result.version = "0.1.0";
  result.command = "verbena-perf --title '<b>&'";
  result.started = started;
  result.machine = {{"host", "one"}, {"cpu", "Some CPU"}, {"memory_bytes", uint64_t{64} << 30}};
  result.setup = {{"device", "softverbs0"}};
  result.environment = {{"VERBENA_UNPACK", "1"}};
  ResultTable table{"messages",
                    {{"size_bytes", "size", "B", Role::kKey},
                     {"time_us", "time", "us", Role::kLower, "median", true},
                     {"path", "path", ""},
                     {"samples_us", "", "us", Role::kSamples}}};
  for (const int size : sizes)
    table.rows.push_back(
        {{"size_bytes", size}, {"time_us", time_us}, {"path", "direct"}, {"samples_us", {1.5}}});
  result.tables.push_back(table);
  return result;
}

class ReportTest : public testing::Test {
 protected:
  ReportTest() { std::filesystem::create_directories(folder_.get()); }

  void store(const std::string& name, const Result& result) {
    std::ofstream(folder_.get() + "/" + name) << describe_result(result).dump();
  }
  static size_t count(const std::string& text, const std::string& part) {
    size_t found = 0;
    for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
    return found;
  }

  const verbena::tests::ScratchPath folder_{"report_results"};
};

TEST_F(ReportTest, TakesWhatIsAResultInOrderOfTime) {
  store("b.json", make_result("2026-01-01T00:00:00Z", 1));
  store("a.json", make_result("2026-02-01T00:00:00Z", 1));
  std::ofstream(folder_.get() + "/other.json") << "{}";
  std::ofstream(folder_.get() + "/notes.txt") << "nothing";
  const Collection collection = collect_results(folder_.get());
  ASSERT_EQ(collection.results.size(), 2U);
  EXPECT_EQ(collection.results[0].name, "b");
  EXPECT_EQ(collection.results[1].name, "a");
  ASSERT_EQ(collection.left_out.size(), 1U);
  EXPECT_NE(collection.left_out[0].find("other.json is no result"), std::string::npos);
  EXPECT_EQ(collect_results(folder_.get() + "/a.json").results.size(), 1U);
}

TEST_F(ReportTest, WithoutAResultItFails) {
  EXPECT_THROW(collect_results(folder_.get()), ToolError);
  EXPECT_THROW(collect_results("/nonexistent"), ToolError);
}

TEST_F(ReportTest, ComparesTablesOfTheSameRows) {
  store("1.json", make_result("1", 10));
  store("2.json", make_result("2", 5));
  store("3.json", make_result("3", 5, {8, 64}));
  const Collection collection = collect_results(folder_.get());
  const std::vector<LikeTables> likes = find_like_tables(collection.results);
  ASSERT_EQ(likes.size(), 1U) << "the third has other sizes";
  ASSERT_EQ(likes[0].results.size(), 2U);
  EXPECT_EQ(likes[0].results[1]->name, "2");
  const ResultTable joined = join_tables(likes[0]);
  EXPECT_EQ(joined.rows.size(), 4U);
  EXPECT_EQ(list_plots(joined)[0].series.size(), 2U) << "a line a result";
}

TEST_F(ReportTest, ThePageNeedsNothingElse) {
  if (!find_plot_problem().empty()) GTEST_SKIP() << find_plot_problem();
  store("1.json", make_result("1", 10));
  store("2.json", make_result("2", 5));
  const std::string page = make_page(collect_results(folder_.get()), folder_.get());
  EXPECT_EQ(count(page, "class=\"result\""), 2U);
  EXPECT_EQ(count(page, "class=\"comparison\""), 1U);
  EXPECT_EQ(count(page, "<svg"), 3U);
  EXPECT_EQ(count(page, "</table>"), 1U + 2 + 1);
  EXPECT_NE(page.find("&lt;b&gt;&amp;"), std::string::npos) << "texts are escaped";
  EXPECT_EQ(page.find("<b>"), std::string::npos);
  EXPECT_NE(page.find("<td>2.00</td>"), std::string::npos) << "twice as good";
  EXPECT_NE(page.find("<td>4K</td>"), std::string::npos);
  EXPECT_NE(page.find("64 GiB"), std::string::npos);
  EXPECT_NE(page.find("VERBENA_UNPACK"), std::string::npos);
  EXPECT_EQ(page.find("samples_us"), std::string::npos);
  EXPECT_EQ(page.find("<script"), std::string::npos);
  EXPECT_EQ(page.find("src="), std::string::npos);
  EXPECT_EQ(page.find(kInkColor), std::string::npos) << "colors are the page's";
  EXPECT_NE(page.find("var(--series-0)"), std::string::npos);
  EXPECT_EQ(page.find("rgb("), std::string::npos) << page.substr(page.find("rgb("), 100);
  EXPECT_NE(page.find("id='chart2-"), std::string::npos);
  EXPECT_EQ(page.find("id='gp"), std::string::npos) << "identifiers are each chart's own";
}

TEST(Html, TablesAlignNumbersAndEscape) {
  const std::string html = format_html_table({{"size", "B"}, {"path", "", false}}, {{"8", "a<b"}});
  EXPECT_NE(html.find("<th>size<span>B</span></th><th class=\"text\">path</th>"), std::string::npos) << html;
  EXPECT_NE(html.find("<td>8</td><td class=\"text\">a&lt;b</td>"), std::string::npos) << html;
}

}  // namespace
}  // namespace verbena::tools::report
