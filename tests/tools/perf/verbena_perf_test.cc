#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "tools/result_document.h"
#include "tools/run_tool.h"

namespace verbena::tools {
namespace {

ToolRun run_perf(const std::string& fault, const std::string& arguments) {
  const std::string sample = std::string(" --plugin ") + SAMPLE_PLUGIN;
  return run_tool("SAMPLE_FAULT=" + fault + " timeout -s KILL 240 " + VERBENA_PERF + sample + " " +
                  arguments);
}

nlohmann::json run_json(const std::string& arguments) {
  const ToolRun run = expect_run(run_perf("", arguments + " --json"), 0);
  return parse_document(run.output);
}

TEST(VerbenaPerf, MovesAndVerifiesAllSizes) {
  const nlohmann::json document = run_json("--sizes 0:1M --factor 8 --iters 20");
  ASSERT_TRUE(document.is_object());
  EXPECT_EQ(document["details"]["wrong_bytes"], 0);
  EXPECT_EQ(list_rows(document).size(), 9U);
  for (const auto& row : list_rows(document)) {
    const uint64_t size = row["size_bytes"];
    EXPECT_EQ(row["path"], size == 0 ? "empty" : size <= 65536 ? "staged" : "direct") << row;
    EXPECT_GT(row["latency_us"].get<double>(), 0) << row;
    // Two latency passes on both sides and two bandwidth passes, of which one repeats its last window.
    EXPECT_EQ(row["verified_bytes"].get<uint64_t>(), size * (2 * (20 + 8) + 20 + 8)) << row;
  }
}

TEST(VerbenaPerf, RepeatsTheCheckedPassUntilAFileIsThere) {
  const std::string run = std::string(VERBENA_PERF) + " --plugin " + SAMPLE_PLUGIN +
                          " --size 4k --iters 4 --mode bandwidth --until ";
  constexpr int kKilled = 137;
  EXPECT_EQ(run_tool("timeout -s KILL 2 " + run + "/nonexistent/file").status, kKilled);
  EXPECT_EQ(run_tool("timeout -s KILL 240 " + run + VERBENA_PERF).status, 0);
}

TEST(VerbenaPerf, NamesTheTransportThatItRan) {
  struct {
    const char *settings, *arguments, *transport;
  } const cases[] = {{"", "--transport datagram", "datagram"},
                     {"VERBENA_TRANSPORT=datagram ", "", "datagram"},
                     {"VERBENA_TRANSPORT=connected ", "", "verbena"}};
  for (const auto& c : cases) {
    const ToolRun run = run_tool(c.settings + std::string("SOFTVERBS_DEVICES=1 timeout -s KILL 240 ") +
                                 VERBENA_PERF + " --size 100k --iters 8 --json " + c.arguments);
    ASSERT_EQ(run.status, 0) << run.output;
    const nlohmann::json document = parse_document(run.output);
    ASSERT_EQ(list_rows(document).size(), 1U);
    EXPECT_EQ(list_rows(document)[0]["transport"], c.transport) << c.settings << c.arguments;
    EXPECT_EQ(document["details"]["wrong_bytes"], 0);
  }
}

TEST(VerbenaPerf, CountsDescriptors) {
  const nlohmann::json document = run_json("--size 2500 --iters 20 --warmup 0 --mode bandwidth");
  ASSERT_EQ(list_rows(document).size(), 1U);
  EXPECT_EQ(list_rows(document)[0]["staged_messages"], 40);
  EXPECT_EQ(list_rows(document)[0]["descriptors"], 120);
}

// Every connection carries messages, and the last is measured as the first is.
TEST(VerbenaPerf, ShowsTheLastOfManyConnections) {
  const nlohmann::json document = run_json("--size 4k --iters 20 --warmup 8 --pairs 5");
  ASSERT_EQ(list_rows(document).size(), 1U);
  const nlohmann::json row = list_rows(document)[0];
  EXPECT_GT(row["latency_us"].get<double>(), 0);
  EXPECT_GT(row["last_latency_us"].get<double>(), 0);
  EXPECT_GT(row["last_bandwidth_GBps"].get<double>(), 0);
  EXPECT_EQ(document["details"]["wrong_bytes"], 0);
  // Of the first and of the last as of a single one, and a window of each of the five.
  EXPECT_EQ(row["verified_bytes"].get<uint64_t>(), 4096U * (2 * (2 * (20 + 8) + 20 + 8) + 5 * 8));
  expect_run(run_perf("", "--size 4k --iters 20 --pairs 5"), 0, {"last: bw"});
  EXPECT_EQ(run_perf("", "--pairs 0").status, 2);
}

TEST(VerbenaPerf, DrivesEveryTableOfThePlugin) {
  for (const char* version : {"7", "9", "12"}) {
    EXPECT_EQ(run_json(std::string("--iters 10 --sizes 1:100k --factor 16 --abi ") +
                       version)["details"]["wrong_bytes"],
              0);
  }
  expect_run(run_perf("", "--abi 10 --size 8"), 1, {"does not export ncclNetPlugin_v10"});
}

TEST(VerbenaPerf, OtherShapesKeepDataRight) {
  for (const char* shape : {"--window 1", "--window 8 --consume-lag 7", "--src-offset 3 --dst-offset 13",
                            "--user-buffer", "--rails 2", "--unpack 0", "--mode latency"}) {
    EXPECT_EQ(
        run_json(std::string("--iters 40 --sizes 8:100k --factor 32 ") + shape)["details"]["wrong_bytes"], 0)
        << shape;
  }
}

TEST(VerbenaPerf, LowLatencyProtocolsTakeNoSlot) {
  for (const char* protocol : {"ll", "ll128"}) {
    const auto document = run_json(std::string("--iters 20 --size 4k --protocol ") + protocol);
    EXPECT_EQ(document["details"]["wrong_bytes"], 0);
    EXPECT_EQ(list_rows(document)[0]["path"], "direct");
  }
}

TEST(VerbenaPerf, UserBuffersGoDirect) {
  EXPECT_EQ(list_rows(run_json("--iters 20 --size 4k --user-buffer"))[0]["path"], "direct");
}

TEST(VerbenaPerf, ReportsWrongBytes) {
  for (const char* fault : {"flip", "overrun", "short"}) {
    expect_run(run_perf(fault, "--size 4096 --iters 20"), 1, {"wrong"});
  }
}

struct BrokenContract {
  const char* fault;
  const char* told;
};

TEST(VerbenaPerf, ReportsBrokenContract) {
  const BrokenContract kCases[] = {
      {"stale", "after irecvConsumed, there are still descriptors"},
      {"early", "no completed receive"},
      {"offset", "exceed the receive"},
      {"no_progress", "needsProxyProgress"},
      {"register", "regMr failed: ncclSystemError (2)"},
      {"error", "irecv failed: ncclRemoteError"},
      {"request", "irecv did not write *request"},
      {"crash", "killed by signal 9"},
      {"head", "no completed receive"},
  };
  for (const BrokenContract& broken : kCases) {
    const ToolRun run = expect_run(run_perf(broken.fault, "--size 4096 --iters 20"), 1);
    EXPECT_NE(run.output.find(broken.told), std::string::npos) << broken.fault << ": " << run.output;
  }
}

TEST(VerbenaPerf, BoundsAHang) {
  expect_run(run_perf("hang", "--size 64 --iters 20 --timeout 1"), 1, {"latency, warm-up, 64 B"});
}

TEST(VerbenaPerf, RefusesBadOptions) {
  EXPECT_EQ(run_perf("", "--sizes 64:8").status, 2);
  EXPECT_EQ(run_perf("", "--abi 13").status, 2);
  EXPECT_EQ(run_perf("", "--device 7").status, 1);
  EXPECT_EQ(run_perf("", "--rails 5").status, 1);
  EXPECT_EQ(run_perf("", "--rails 2 --abi 7").status, 1);
  EXPECT_EQ(run_perf("", "--help").status, 0);
}

}  // namespace
}  // namespace verbena::tools
