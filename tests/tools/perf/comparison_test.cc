// verbena-perf --against ib, with stand-ins for both transports.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "tools/result_document.h"
#include "tools/run_tool.h"

namespace verbena::tools {
namespace {

using testing::HasSubstr;

std::string make_command(const std::string& arguments) {
  return std::string("timeout -s KILL 240 ") + VERBENA_PERF + " --plugin " + SAMPLE_PLUGIN + " --nccl " +
         SAMPLE_NCCL + " " + arguments;
}

// Samples of a size: rounds times repeats.
void expect_document(const std::string& text, size_t size_count, size_t sample_count) {
  const auto document = parse_document(text);
  ASSERT_TRUE(document.is_object()) << text;
  EXPECT_EQ(document["details"]["verbena"]["name"], "sample");
  EXPECT_EQ(document["details"]["nccl_ib"]["name"], "sample_ib");
  std::map<std::string, size_t> counts;
  for (const auto& row : list_rows(document)) {
    ++counts[row["transport"]];
    EXPECT_EQ(row["wrong_bytes"], 0);
    EXPECT_EQ(row["latency_passes_us"].size(), sample_count);
    EXPECT_EQ(row["bandwidth_passes_GBps"].size(), sample_count);
    EXPECT_LE(row["latency_min_us"].get<double>(), row["latency_us"].get<double>());
  }
  EXPECT_EQ(counts, (std::map<std::string, size_t>{{"verbena", size_count}, {"nccl-ib", size_count}}));
}

TEST(Comparison, RunsBothTransportsInTurn) {
  const ToolRun run = expect_run(
      run_tool(
          make_command("--against ib --rounds 3 --repeats 4 --sizes 8:4k --factor 16 --iters 10 --json")),
      0);
  expect_document(run.output, 4, 12);
}

TEST(Comparison, PrintsOneTable) {
  const ToolRun run = expect_run(run_tool(make_command("--against ib --size 4k --iters 10")), 0,
                                 {"# ib: NCCL 2.28.9's own IB, table v11, device sample_ib", "faster"});
  // The least that a figure must rest on.
  EXPECT_THAT(run.output, HasSubstr("       20      0\n"));
}

TEST(Comparison, OneTransportAlone) {
  expect_run(run_tool(make_command("--transport nccl-ib --size 4k --iters 10 --rails 2 --json")), 0,
             {"sample_ib"});
}

TEST(Comparison, WrongBytesEndIt) {
  expect_run(run_tool("SAMPLE_FAULT=flip " + make_command("--against ib --size 4k --iters 20")), 1);
}

TEST(Comparison, RunsBetweenTwoHosts) {
  std::FILE* const server =
      popen(("exec 2>&1; exec " + make_command("--server --port 0 --json")).c_str(), "r");
  int port = 0;
  ASSERT_EQ(std::fscanf(server, "# waiting for a client at port %d", &port), 1);
  const ToolRun client =
      run_tool(make_command("--against ib --rounds 2 --sizes 8:4k --factor 16 --iters 10 --json") +
               " --client localhost --port " + std::to_string(port));
  const ToolRun served = read_tool(server);
  EXPECT_EQ(client.status, 0) << client.output;
  EXPECT_EQ(served.status, 0) << served.output;
  expect_document(client.output, 4, 10);
  EXPECT_EQ(list_rows(parse_document(client.output)), list_rows(parse_document(served.output)))
      << served.output;
}

TEST(Comparison, RefusesContradictions) {
  EXPECT_EQ(run_tool(make_command("--against ib --transport nccl-ib")).status, 2);
  EXPECT_EQ(run_tool(make_command("--against socket")).status, 2);
  EXPECT_EQ(run_tool(make_command("--compare socket")).status, 2) << "no such file";
  EXPECT_EQ(run_tool(make_command("--transport ib")).status, 2);
}

}  // namespace
}  // namespace verbena::tools
