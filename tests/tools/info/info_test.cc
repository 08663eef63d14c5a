#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "base/scratch_path.h"
#include "common/error.h"
#include "tools/info/run_info.h"
#include "verbena-info/collect.h"

namespace verbena::tools::info {
namespace {

using testing::HasSubstr;
using testing::Not;

Json run_json(const std::string& settings, int status = kExitOk) {
  const ToolRun run = expect_run(run_info(settings, "--json 2>/dev/null"), status);
  return read_json(run);
}

Json find_parameter(const Json& document, const std::string& name) {
  for (const Json& row : document["parameters"]) {
    if (row["name"] == name) return row;
  }
  ADD_FAILURE() << name;
  return Json::object();
}

TEST(Info, ShowsEveryRail) {
  const Json document = run_json("SOFTVERBS_DEVICES=3");
  EXPECT_EQ(document["schema_version"], kSchemaVersion);
  ASSERT_EQ(document["devices"].size(), 3U);
  for (size_t i = 0; i < 3; ++i) {
    const Json& device = document["devices"][i];
    EXPECT_EQ(device["device"], "softverbs" + std::to_string(i));
    EXPECT_EQ(device["name"], "verbena_softverbs" + std::to_string(i));
    EXPECT_EQ(device["index"], i);
    EXPECT_EQ(device["usable"], true);
    EXPECT_EQ(device["state"], "active");
    EXPECT_EQ(device["mtu_bytes"], 4096);
    EXPECT_EQ(device["gid"]["type"], "RoCE v2");
    EXPECT_EQ(device["gid_reason"], "RoCE v2 and IPv4: the best of 2 entries");
    EXPECT_EQ(device["gid_reason_code"], "best");
    EXPECT_EQ(device["gpu_memory"]["path"], "softverbs");
  }
}

TEST(Info, ShowsWhatTheTableSays) {
  const Json document = run_json("SOFTVERBS_DEVICES=2");
  EXPECT_EQ(document["plugin"]["net_tables"], Json({7, 8, 9, 10, 11, 12}));
  EXPECT_EQ(document["plugin"]["tuner_tables"], Json({2, 3, 4, 5, 6}));
  EXPECT_EQ(document["plugin"]["rma_tables"], Json({14, 15, 16}));
  EXPECT_EQ(document["plugin"]["gin_tables"], Json({11, 13}));
  const Json& view = document["nccl_view"];
  EXPECT_EQ(view["table"], 12);
  ASSERT_EQ(view["devices"].size(), 2U);
  EXPECT_EQ(view["devices"][1]["name"], document["devices"][1]["name"]);
  EXPECT_EQ(view["devices"][1]["speed_mbps"], document["devices"][1]["speed_mbps"]);
  ASSERT_EQ(view["rail_sets"].size(), 1U);
  EXPECT_EQ(view["rail_sets"][0]["refused"], "VERBENA_MERGE_NICS=2 joins PCI devices only");
}

TEST(Info, ShowsRailsThatMayBeJoined) {
  const Json document = run_json("SOFTVERBS_DEVICES=2 VERBENA_MERGE_NICS=1");
  const Json& set = document["nccl_view"]["rail_sets"][0];
  EXPECT_EQ(set["name"], "verbena_softverbs0+verbena_softverbs1");
  EXPECT_EQ(set["speed_mbps"], 2 * document["devices"][0]["speed_mbps"].get<int>());
}

TEST(Info, SaysWhyUnpackIsOffered) {
  for (const char* value : {"0", "1"}) {
    const Json unpack = run_json(std::string("NCCL_NET_DEVICE_UNPACK_ENABLED=") + value)["unpack"];
    EXPECT_EQ(unpack["offered"], *value == '1');
    EXPECT_EQ(unpack["why"], std::string("NCCL_NET_DEVICE_UNPACK_ENABLED=") + value);
    EXPECT_EQ(unpack["reason"], "setting");
  }
  const Json datagrams = run_json("VERBENA_TRANSPORT=datagram VERBENA_UNPACK=1")["unpack"];
  EXPECT_EQ(datagrams["offered"], true);
  EXPECT_EQ(datagrams["reason"], "setting");
  EXPECT_NE(run_json("")["unpack"]["why"].get<std::string>().find("VERBENA_UNPACK is auto"),
            std::string::npos);
}

TEST(Info, ShowsParametersWithOrigin) {
  const Json document = run_json("NCCL_IB_TIMEOUT=18");
  const Json set = find_parameter(document, "VERBENA_ACK_TIMEOUT");
  EXPECT_EQ(set["value"], "18");
  EXPECT_EQ(set["origin"], "NCCL_IB_TIMEOUT");
  EXPECT_EQ(set["default"], "20");
  EXPECT_EQ(set["range"], "1 to 31");
  EXPECT_FALSE(set["doc"].get<std::string>().empty());
  EXPECT_EQ(find_parameter(document, "VERBENA_RETRY_COUNT")["origin"], "default");
  EXPECT_EQ(document["environment"]["NCCL_IB_TIMEOUT"], "18");
}

TEST(Info, WithoutAUsableDeviceSaysWhatToDo) {
  const Json document = run_json("SOFTVERBS_DEVICES=2 VERBENA_HCA=mlx5", kExitNoDevice);
  ASSERT_EQ(document["devices"].size(), 2U);
  EXPECT_EQ(document["devices"][0]["usable"], false);
  EXPECT_EQ(document["devices"][0]["why_not"], "VERBENA_HCA=mlx5 does not select this port");
  EXPECT_EQ(document["devices"][0]["reason"], "not_selected");
  EXPECT_EQ(document["reason"], "no_device");
  expect_run(run_info("VERBENA_HCA=mlx5", ""), kExitNoDevice,
             {"unset VERBENA_HCA (NCCL_IB_HCA), or set the variable to a device"});
}

TEST(Info, ADeviceThatIsDownIsShownAsSuch) {
  const std::string rails =
      "RAILS=$(mktemp); echo '0 down' > $RAILS; SOFTVERBS_RAILS=$RAILS SOFTVERBS_DEVICES=2";
  const Json document = run_json(rails);
  ASSERT_EQ(document["devices"].size(), 2U);
  EXPECT_EQ(document["devices"][0]["state"], "down");
  EXPECT_EQ(document["devices"][0]["why_not"], "the port is down");
  EXPECT_EQ(document["devices"][0]["reason"], "not_active");
  expect_run(run_info(rails, "--check"), kExitOk, {"not used: the port is down  -> check cable and switch"});
  EXPECT_EQ(document["devices"][1]["usable"], true);
}

TEST(Info, DevicesThatCannotBeListed) {
  expect_run(run_info("SOFTVERBS_FAULTS=nonsense", ""), kExitNoDevice,
             {"There is no RDMA device that the plugin can use"});
}

TEST(Info, WithoutAVerbsLibrary) {
  expect_run(run_info("VERBENA_IBVERBS_LIB=/nonexistent/libibverbs.so.1", ""), kExitNoDevice,
             {"install libibverbs1"});
}

TEST(Info, ABrokenParameterIsNamed) {
  const Json document = run_json("VERBENA_TC=999 VERBENA_TX=1", kExitFailed);
  EXPECT_EQ(document["problem"], "parameters: VERBENA_TC: out of range (value 999, range -1 to 255)");
  EXPECT_EQ(document["reason"], "settings");
  ASSERT_EQ(document["devices"].size(), 1U);
  EXPECT_EQ(document["devices"][0]["usable"], false);
  EXPECT_EQ(document["devices"][0]["reason"], "init_failed");
  EXPECT_NE(document["messages"].dump().find("VERBENA_TX is unknown"), std::string::npos);
}

TEST(Info, WithoutThePlugin) {
  expect_run(run_info("", "--plugin /nonexistent.so"), kExitFailed, {"NCCL could not use /nonexistent.so"});
}

#ifdef FAKE_FOLDER
// Its version is asked for, its tables are read from the file: here there are none in it.
TEST(Info, ShowsLibrariesOfNccl) {
  const ToolRun run = run_info("", std::string("--json --nccl ") + FAKE_FOLDER + " 2>/dev/null");
  const Json libraries = read_json(run)["nccl_libraries"];
  ASSERT_EQ(libraries.size(), 1U) << run.output;
  EXPECT_EQ(libraries[0]["version"], "2.28.9");
  EXPECT_EQ(libraries[0]["net_table"], nullptr);
}
#endif

// The plugin's own names stand for those that NCCL looks up: every version that it has.
TEST(Info, ReadsTablesFromAFile) {
  EXPECT_EQ(read_table_names(PLUGIN, "ncclNetPlugin_v"), (std::vector<int>{7, 8, 9, 10, 11, 12}));
  EXPECT_TRUE(read_table_names("/nonexistent", "ncclNetPlugin_v").empty());
}

TEST(Info, TakesTheNewestTableOfBoth) {
  EXPECT_EQ(choose_table({6, 7, 10, 11}, {7, 8, 9, 10, 11, 12}), 11);
  EXPECT_EQ(choose_table({5, 13}, {7, 12}), std::nullopt);
}

TEST(Info, WritesItsDocumentToAFileToo) {
  const ToolRun run = run_info("FILE=$(mktemp);", "--json $FILE; cat $FILE; rm $FILE");
  EXPECT_THAT(run.output, HasSubstr("WHAT NCCL WOULD SEE"));
  EXPECT_THAT(run.output, HasSubstr("\"schema_version\": 1"));
  EXPECT_EQ(run_info("", "--json > /dev/full").status, kExitFailed);
}

TEST(Info, ShowsAStoredDocument) {
  const ToolRun run =
      run_tool(std::string("FILE=$(mktemp); ") + VERBENA_INFO + " --nccl /nonexistent --json > $FILE; " +
               VERBENA_INFO + " --from $FILE --parameters; rm $FILE");
  EXPECT_THAT(run.output, HasSubstr("verbena_softverbs0"));
  EXPECT_THAT(run.output, HasSubstr("VERBENA_ACK_TIMEOUT = 20 (default; 1 to 31)"));
  EXPECT_THAT(run.output, HasSubstr("SOFTVERBS_PORT = 23552 (default; 1024 to 64511)"));
  EXPECT_THAT(run.output, Not(HasSubstr("VERBENA_RAIL_RETRY_MS = "))) << "advanced";
  EXPECT_THAT(run.output,
              HasSubstr("18 settings have their default values; --parameters --all shows these settings"));
  const ToolRun whole = run_info("VERBENA_STATS_INTERVAL_MS=100", "--parameters --all");
  EXPECT_THAT(whole.output, HasSubstr("VERBENA_RAIL_RETRY_MS = "));
  EXPECT_THAT(whole.output, Not(HasSubstr("have their default values")));
  EXPECT_THAT(run_info("VERBENA_STATS_INTERVAL_MS=100", "").output,
              HasSubstr("VERBENA_STATS_INTERVAL_MS = 100"))
      << "what is set is always shown";
  EXPECT_EQ(run_tool(std::string("echo '{}' | ") + VERBENA_INFO + " --from -").status, kExitFailed);
  expect_run(run_tool(std::string("echo '{\"schema_version\": 1}' | ") + VERBENA_INFO + " --from - 2>&1"),
             kExitFailed, {"the document lacks \"tool\""});
}

// Another user may have prepared the folder in which the tool starts.
TEST(Info, NothingOfTheCurrentFolderRuns) {
  const tests::ScratchPath folder("current");
  const std::string wheel = folder.get() + "/nvidia/nccl/lib";
  std::filesystem::create_directories(wheel);
  std::ofstream(wheel + "/libnccl.so.2") << "no library";
  std::ofstream(folder.get() + "/glob.py") << "open('ran', 'w')\nraise ImportError\n";
  const ToolRun run = run_tool("cd " + folder.get() +
                               " && unset NCCL_LIB CUDA_HOME CUDA_PATH PYTHONPATH;"
                               " VERBENA_IBVERBS_LIB=softverbs SOFTVERBS_JOB=info$$ timeout -s KILL 240 " +
                               VERBENA_INFO + " --plugin " + PLUGIN + " --json 2>/dev/null");
  EXPECT_EQ(read_json(run)["schema_version"], kSchemaVersion);
  EXPECT_FALSE(std::filesystem::exists(folder.get() + "/ran"));
  EXPECT_THAT(run.output, Not(HasSubstr(wheel)));
  EXPECT_THAT(run.output, Not(HasSubstr("./nvidia")));
}

// One line, which names each form of each device.
TEST(Info, SaysWhatADeviceDoes) {
  const ToolRun run =
      expect_run(run_info("SOFTVERBS_DEVICES=2 SOFTVERBS_PROFILE=bnxt", "--self-test 2>/dev/null"), kExitOk);
  EXPECT_EQ(std::count(run.output.begin(), run.output.end(), '\n'), 1);
  const Json line = read_json(run);
  ASSERT_EQ(line["devices"].size(), 2U);
  for (const Json& device : line["devices"]) {
    EXPECT_EQ(device["vendor_id"], 0x14e4);
    EXPECT_EQ(device["usable"], true);
    EXPECT_EQ(device["bonded_ports"], 1);
    EXPECT_EQ(device["forms"]["datagram"], "ok");
    EXPECT_EQ(device["forms"]["shared_imm"], "ok");
    EXPECT_EQ(device["forms"]["shared_bare"], "refused (errno 22)");
    EXPECT_EQ(device["forms"]["fetch_add"], "not offered");
    EXPECT_EQ(device["instead"], "");
  }
}

TEST(Info, SaysWhatADeviceCannotDo) {
  const ToolRun run =
      expect_run(run_info("SOFTVERBS_FAULTS='fail opcode=RDMA_WRITE_WITH_IMM status=REM_OP every=1'",
                          "--self-test 2>/dev/null"),
                 kExitFailed);
  const Json device = read_json(run)["devices"][0];
  EXPECT_EQ(device["usable"], false);
  EXPECT_NE(device["why_not"].get<std::string>().find("a receive with an immediate failed"),
            std::string::npos);
  EXPECT_EQ(run_info("SOFTVERBS_PROFILE=unknown", "--self-test 2>/dev/null").status, kExitNoDevice);
}

}  // namespace
}  // namespace verbena::tools::info
