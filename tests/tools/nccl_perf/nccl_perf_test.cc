#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/scratch_path.h"
#include "tools/run_tool.h"

namespace verbena::tools {
namespace {

using testing::HasSubstr;

// The tool as it is, on a driver and an NCCL of the tests' own.
ToolRun run_perf(const std::string& environment, const std::string& arguments) {
  const std::string fakes = FAKE_FOLDER;
  return run_tool("LD_LIBRARY_PATH=" + fakes + " " + environment + " timeout -s KILL 240 " + NCCL_PERF +
                  " --nccl " + fakes + " " + arguments);
}

TEST(NcclPerf, FailsWhereNcclUsedAnotherNetwork) {
  expect_run(run_perf("FAKE_GPUS=2 NCCL_NET=Socket", "--op all_reduce --sizes 8 -n 2 -w 1"), 1,
             {"NCCL used the network Socket instead"});
}

TEST(NcclPerf, ComparesMediansOfRounds) {
  const verbena::tests::ScratchPath scratch("nccl_perf_rounds.json");
  const std::string& file = scratch.get();
  expect_run(
      run_perf(
          "FAKE_GPUS=2",
          "--op all_reduce --sizes 8:128 --factor 16 -n 3 -w 1 --against socket --rounds 3 --json " + file),
      0, {"=== medians of 3 rounds ==="});
  std::ifstream stream(file);
  const nlohmann::json document = nlohmann::json::parse(stream);
  std::string order;
  for (const auto& variant : document["details"]["variants"])
    order += variant["name"].get<std::string>().front();
  EXPECT_EQ(order, "psspps");
  ASSERT_EQ(document["details"]["comparison"].size(), 2U);
  for (const auto& line : document["details"]["comparison"]) {
    auto own = line["times_us"]["plugin"].get<std::vector<double>>();
    auto other = line["times_us"]["socket"].get<std::vector<double>>();
    ASSERT_EQ(own.size(), 3U);
    ASSERT_EQ(other.size(), 3U);
    std::sort(own.begin(), own.end());
    std::sort(other.begin(), other.end());
    EXPECT_DOUBLE_EQ(line["gain"]["socket"].get<double>(), other[1] / own[1]);
  }
}

TEST(NcclPerf, SoaksForAsLongAsItIsTold) {
  const verbena::tests::ScratchPath scratch("nccl_perf_soak.json");
  expect_run(run_perf("FAKE_GPUS=2", "--op all_reduce --sizes 64 -n 3 -w 1 --soak 1 --json " + scratch.get()),
             0, {"# soak: "});
  std::ifstream stream(scratch.get());
  const nlohmann::json soak = nlohmann::json::parse(stream)["details"]["variants"][0]["rows"][0]["soak"];
  uint64_t iterations = 0;
  for (const auto& count : soak["counts_by_power_of_two_us"]) iterations += count.get<uint64_t>();
  EXPECT_GT(iterations, 2U * 3U) << "more than once, on both ranks";
  EXPECT_EQ(iterations % (2 * 3), 0U) << "both ranks ended with the same repetition";
}

TEST(NcclPerf, RunsAndVerifiesEveryOperation) {
  const verbena::tests::ScratchPath scratch("nccl_perf_test.json");
  const std::string& file = scratch.get();
  expect_run(run_perf("FAKE_GPUS=3", "--sizes 8:60k --factor 16 -n 3 -w 1 --against socket --json " + file),
             0,
             {"NCCL assigned: Fake; using network: Fake", "NCCL assigned: Socket",
              "# rank 2 (emulated GPU): verbena: counters: 12 messages staged, 3 direct"});
  std::ifstream stream(file);
  const nlohmann::json document = nlohmann::json::parse(stream);
  EXPECT_EQ(document["details"]["nccl"]["version"], "2.28.9");
  ASSERT_EQ(document["details"]["variants"].size(), 2U);
  for (const auto& variant : document["details"]["variants"]) {
    EXPECT_EQ(variant["rows"].size(), 6U * 5U);
    for (const auto& row : variant["rows"]) {
      EXPECT_EQ(row["wrong"], 0) << row;
      EXPECT_GT(row["time_us"].get<double>(), 0) << row;
    }
  }
  EXPECT_TRUE(document["details"]["variants"][1]["rows"][0].contains("ratio"));
  ASSERT_EQ(document["tables"].size(), 6U) << "one an operation";
  for (const auto& table : document["tables"]) {
    ASSERT_EQ(table["rows"].size(), 2U * 5U);
    for (const auto& row : table["rows"])
      EXPECT_GE(row["time_p99_us"].get<double>(), row["time_us"].get<double>());
  }
}

TEST(NcclPerf, TheResultIsAloneOnStandardOutput) {
  const ToolRun run =
      expect_run(run_perf("FAKE_GPUS=2", "--op all_reduce,broadcast --sizes 64,4K -n 3 -w 1 --csv -"), 0);
  EXPECT_EQ(run.output.rfind("operation,variant,size_bytes,count,time_us,", 0), 0U) << run.output;
  EXPECT_EQ(std::count(run.output.begin(), run.output.end(), '\n'), 1 + 2 * 2) << run.output;
  EXPECT_THAT(run.output, HasSubstr("\nbroadcast,plugin,4096,"));
}

TEST(NcclPerf, GivesRailsAPlaceInEveryRanksTopology) {
  const verbena::tests::ScratchPath scratch("nccl_perf_topology");
  const std::string& folder = scratch.get();
  expect_run(run_perf("FAKE_GPUS=2",
                      "--op all_reduce --sizes 8 -n 1 -w 1 --verbose "
                      "--rails 2 --join --log-dir " +
                          folder),
             0, {"VERBENA_MERGE_NICS=1"});
  for (const char* rank : {"0", "1"}) {
    std::ifstream stream(folder + "/plugin.rank" + rank + ".topology.xml");
    const std::string xml{std::istreambuf_iterator<char>(stream), {}};
    EXPECT_NE(xml.find("<cpu numaid=\"-1\">"), std::string::npos) << xml;
    EXPECT_NE(xml.find("softverbs1"), std::string::npos) << xml;
  }
}

TEST(NcclPerf, ReportsWrongElements) {
  expect_run(run_perf("FAKE_GPUS=2 FAKE_NCCL_FAULT=wrong", "--op all_reduce --sizes 4k -n 5 -w 10"), 1,
             {"# 1 wrong elements"});
}

TEST(NcclPerf, BoundsAHangAndShowsTheLogs) {
  expect_run(run_perf("FAKE_GPUS=2 FAKE_NCCL_FAULT=hang", "--op all_reduce --sizes 4k --timeout 1"), 3,
             {"in \"all_reduce 4K\"", "Using network Fake", "thread "});
}

TEST(NcclPerf, BoundsAStreamThatNeverEnds) {
  expect_run(run_perf("FAKE_GPUS=2 FAKE_GPU_BUSY=1", "--timeout 1"), 3, {"the GPU has not finished in 1 s"});
}

TEST(NcclPerf, TellsADeadRank) {
  expect_run(run_perf("FAKE_GPUS=2 FAKE_NCCL_FAULT=crash", "--op all_reduce --sizes 4k"), 1,
             {"rank 1: killed by signal 9"});
}

TEST(NcclPerf, NeedsAGpu) {
  expect_run(run_perf("FAKE_GPUS=0", ""), 4,
             {"there is no CUDA device; nccl-perf needs a GPU; try verbena-perf"});
}

TEST(NcclPerf, RanksShareGpus) {
  expect_run(run_perf("FAKE_GPUS=1", "--op all_reduce --sizes 4k"), 0, {"2 ranks share 1 GPU "});
  expect_run(run_perf("FAKE_GPUS=2", "--ranks 3 --op all_reduce --sizes 4k"), 0, {"3 ranks share 2 GPUs "});
}

TEST(NcclPerf, RunsCommunicatorsAtTheSameTime) {
  const char* const options = "--communicators 3 --op all_reduce,send_recv --sizes 4k -n 3 -w 10";
  expect_run(run_perf("FAKE_GPUS=2", options), 0);
  expect_run(run_perf("FAKE_GPUS=2 FAKE_NCCL_FAULT=wrong-split", options), 1, {"wrong"});
}

TEST(NcclPerf, ListsLibraries) {
  expect_run(run_perf("", "--list-nccl"), 0, {"2.28.9"});
  expect_run(run_tool(std::string(NCCL_PERF) + " --list-nccl --nccl " + NCCL_PERF), 1, {"cannot load NCCL"});
}

TEST(NcclPerf, RefusesBadOptions) {
  EXPECT_EQ(run_perf("", "--op gather").status, 2);
  EXPECT_EQ(run_perf("", "--sizes 1M:1k").status, 2);
  EXPECT_EQ(run_perf("", "--against nothing").status, 2);
  EXPECT_EQ(run_perf("", "--join").status, 2);
  EXPECT_EQ(run_perf("FAKE_GPUS=2", "--out /nonexistent/file").status, 1);
  EXPECT_EQ(run_perf("FAKE_GPUS=2", "--calibrate x --json").status, 2);
}

}  // namespace
}  // namespace verbena::tools
