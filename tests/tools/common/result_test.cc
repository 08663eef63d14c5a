// What is stored of a measurement: its JSON, CSV.
#include "common/result.h"

#include <gtest/gtest.h>

#include <fstream>

#include "base/scoped_environment.h"
#include "base/scratch_path.h"
#include "common/error.h"
#include "common/output.h"

namespace verbena::tools {
namespace {

using Role = ResultColumn::Role;

Result make_result() {
  const char* arguments[] = {"/some/where/sample", "--sizes", "8:64", "--title", "it's one"};
  Result result = begin_result("sample", 5, arguments);
  ResultTable table{"messages",
                    {{"kind", "kind", "", Role::kKey},
                     {"size_bytes", "size", "B", Role::kKey},
                     {"time_us", "time", "us", Role::kLower, "median", true},
                     {"samples_us", "", "us", Role::kSamples}}};
  table.rows.push_back({{"kind", "a"}, {"size_bytes", 8}, {"time_us", 1.5}, {"samples_us", {1.0, 2.0}}});
  table.rows.push_back({{"kind", "b, \"c\""}, {"size_bytes", 64}});
  result.tables.push_back(table);
  return result;
}

OutputOptions to_json_file(const std::string& file) {
  OutputOptions options;
  options.json = file;
  return options;
}

TEST(Result, IsWrittenAsItIs) {
  const verbena::tests::ScratchPath scratch("result.json");
  Result written = make_result();
  EXPECT_EQ(deliver_result(written, to_json_file(scratch.get()), kExitOk), kExitOk);
  std::ifstream file(scratch.get());
  const nlohmann::json read = nlohmann::json::parse(file);
  EXPECT_EQ(read, describe_result(written));
  EXPECT_GE(read["duration_s"], 0);
  EXPECT_LT(read["duration_s"], 600);
  EXPECT_EQ(read["command"], "sample --sizes 8:64 --title 'it'\\''s one'");
}

TEST(Result, CsvHasUnitsInItsHeaderAndNoSamples) {
  Result result = make_result();
  EXPECT_EQ(format_csv(result), "kind,size_bytes,time_us\na,8,1.5\n\"b, \"\"c\"\"\",64,\n");
  result.tables.push_back(result.tables[0]);
  result.tables.push_back(
      {"others", {{"speed_GBps", "speed", "GB/s", Role::kHigher}}, {{{"speed_GBps", 2}}}});
  const std::string rows = "a,8,1.5\n\"b, \"\"c\"\"\",64,\n";
  EXPECT_EQ(format_csv(result), "kind,size_bytes,time_us\n" + rows + rows + "\nspeed_GBps\n2\n")
      << "tables of the same columns share a header";
}

TEST(Result, WhatCannotBeWrittenIsAnError) {
  Result result = make_result();
  EXPECT_THROW(deliver_result(result, to_json_file("/nonexistent/file"), kExitOk), ToolError);
}

TEST(Machine, NamesWhatFiguresDependOn) {
  const nlohmann::json machine = describe_machine();
  for (const char* member : {"host", "kernel", "cpu"})
    EXPECT_FALSE(machine[member].get<std::string>().empty());
  EXPECT_GT(machine["cpus"], 0);
  EXPECT_GT(machine["memory_bytes"], 1 << 20);
  const base::ScopedEnvironment environment({{"VERBENA_SAMPLE", "a=b"}});
  EXPECT_EQ(list_measured_environment()["VERBENA_SAMPLE"], "a=b");
  EXPECT_FALSE(list_measured_environment().contains("PATH"));
}

}  // namespace
}  // namespace verbena::tools
