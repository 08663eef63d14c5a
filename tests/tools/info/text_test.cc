#include "verbena-info/text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "common/error.h"
#include "tools/info/sample_machine.h"
#include "verbena-info/advice.h"

namespace verbena::tools::info {
namespace {

TEST(InfoText, NamesVersionsShortly) {
  EXPECT_EQ(format_versions({7, 8, 9, 10}), "v7 to v10");
  EXPECT_EQ(format_versions({2, 4, 5}), "v2, v4 to v5");
  EXPECT_EQ(format_versions({}), "none");
}

TEST(InfoText, BreaksLinesBetweenWords) {
  EXPECT_EQ(wrap("one two three", 4, 12), "one two\n    three");
  EXPECT_EQ(wrap("/a/path/longer/than/the/line", 4, 10), "/a/path/longer/than/the/line");
}

TEST(InfoText, ShowsHowFarNicsAreFromGpus) {
  const std::string text = format_document(make_sample_machine(), {});
  EXPECT_NE(text.find("GPU0   GPU1"), std::string::npos) << text;
  EXPECT_NE(text.find("verbena_mlx5_0            PIX    SYS"), std::string::npos) << text;
  EXPECT_NE(text.find("verbena_mlx5_1            SYS    PIX"), std::string::npos) << text;
  EXPECT_THAT(text, testing::HasSubstr("0000:9b:00.0, NUMA node 1, behind PCI switch 0000:97:00.0"));
  EXPECT_NE(text.find("mlx5_2 port 1  NOT USED: the port is down"), std::string::npos) << text;
}

TEST(InfoText, ColumnsAreAsWideAsNames) {
  Document machine = make_sample_machine();
  machine.ports[1].nic->name = "verbena_" + std::string(40, 'x');
  const std::string text = format_document(machine, {});
  EXPECT_THAT(text, testing::HasSubstr("\n    verbena_mlx5_0" + std::string(35, ' ') + "PIX    SYS"));
  EXPECT_NE(text.find(std::string(40, 'x') + " SYS    PIX"), std::string::npos) << text;
}

TEST(InfoText, SaysHowNcclComesToLoadThePlugin) {
  Document machine = make_sample_machine();
  EXPECT_THAT(format_document(machine, {}),
              testing::HasSubstr("export NCCL_NET_PLUGIN=verbena (not set now), with /opt in"));
  machine.environment["NCCL_NET_PLUGIN"] = "verbena";
  EXPECT_EQ(format_document(machine, {}).find("not set now"), std::string::npos);
}

bool advises(const Document& document, const std::string& words) {
  const std::vector<Advice> advice = list_advice(document);
  return std::any_of(advice.begin(), advice.end(), [&](const Advice& one) {
    return (one.what + " " + one.remedy).find(words) != std::string::npos;
  });
}

TEST(InfoAdvice, NamesWhatIsWrongAndOnlyThat) {
  Document machine = make_sample_machine();
  EXPECT_TRUE(advises(machine, "mlx5_2 port 1 is down"));
  EXPECT_FALSE(advises(machine, "ulimit"));
  EXPECT_FALSE(advises(machine, "GPUDirect"));
  machine.host.memlock_limit_bytes = 65536;
  EXPECT_TRUE(advises(machine, "ulimit -l unlimited"));
  machine.ports[0].nic->gpu_memory = {GpuPath::kNone, "because", "modprobe nvidia_peermem"};
  EXPECT_TRUE(advises(machine, "modprobe nvidia_peermem"));
  machine.ports[2].interface = "eth7";
  EXPECT_TRUE(advises(machine, "ip link set eth7 up"));
}

// Whatever the words are that people read beside them.
TEST(InfoAdvice, IsDecidedByCodes) {
  Document machine = make_sample_machine();
  machine.ports[0].gid_reason = "link-local";
  EXPECT_FALSE(advises(machine, "ip address add"));
  machine.ports[0].gid_choice = verbs::GidReason::kLinkLocal;
  EXPECT_TRUE(advises(machine, "ip address add"));
  machine.problem = "parameters: none of these words counts";
  machine.init_fault = InitFault::kNoDevice;
  EXPECT_TRUE(advises(machine, "There is no RDMA device"));
  machine.ports[2].disuse = Disuse::kNotSelected;
  EXPECT_TRUE(advises(machine, "unset VERBENA_HCA (NCCL_IB_HCA), or set the variable to a device"));
  machine.init_fault = InitFault::kSettings;
  EXPECT_TRUE(advises(machine, "correct or unset the variable"));
}

// Without the plugin's tables nothing is known about the libraries of NCCL.
TEST(InfoAdvice, BlamesNcclOnlyIfThePluginWasLoaded) {
  Document machine = make_sample_machine();
  NcclLibrary old;
  old.path = "/opt/libnccl.so.2";
  old.net_tables_known = {5, 6};
  machine.nccl_libraries = {old};
  machine.plugin.net_tables = {7, 8};
  EXPECT_TRUE(advises(machine, "NCCL 2.19 or newer"));
  machine.plugin.net_tables.clear();
  EXPECT_FALSE(advises(machine, "NCCL 2.19 or newer"));
}

TEST(InfoAdvice, EveryFaultOfATestHasARemedy) {
  const Port port = make_sample_machine().ports[0];
  EXPECT_NE(suggest_for_test(TestFault::kPeer, port, false).find("VERBENA_HCA=^mlx5_0"), std::string::npos);
  EXPECT_NE(suggest_for_test(TestFault::kNoRegistration, port, false).find("ulimit"), std::string::npos);
  EXPECT_THAT(suggest_for_test(TestFault::kNoRegistration, port, true), testing::HasSubstr("nvidia_peermem"));
  for (int fault = 0; fault <= static_cast<int>(TestFault::kProcessEnded); ++fault)
    EXPECT_FALSE(suggest_for_test(static_cast<TestFault>(fault), port, false).empty()) << fault;
}

TEST(InfoAdvice, JudgesByExitStatus) {
  Document machine = make_sample_machine();
  EXPECT_EQ(judge(machine), kExitOk);
  machine.plugin.problem = "cannot load the plugin";
  EXPECT_EQ(judge(machine), kExitFailed);
  for (Port& port : machine.ports) port.nic.reset();
  EXPECT_EQ(judge(machine), kExitNoDevice);
  machine.init_fault = InitFault::kSettings;
  EXPECT_EQ(judge(machine), kExitFailed);
}

// Every member, there and back.
TEST(InfoDocument, IsTheSameReadAgain) {
  Document machine = make_sample_machine();
  machine.nccl_view = NcclView{
      12, "Verbena", {{0, "a", "", 7, 1, 400000, 1.5, {"host"}, 8, 1, true}}, {{{0, 1}, "", "no", 0}}};
  machine.parameters = {{"VERBENA_TC", "number", "-1", "-1 to 255", "", "", "doc", "5", "VERBENA_TC"}};
  machine.nccl_libraries = {{"/lib/libnccl.so.2", "loader", "2.28.9", "", {11}, {5}, 11, std::nullopt}};
  machine.messages = {{Level::kWarning, "words"}};
  machine.checks = {{"mlx5_0", "host memory", CheckStatus::kFailed, "data", "try", TestFault::kPeer,
                     std::vector<info::Test>{{"data", false, "words", TestFault::kPeer}}}};
  machine.advice = list_advice(machine);
  const std::string text = format_json(machine);
  EXPECT_EQ(format_json(parse_document(text, "here")), text);
  EXPECT_EQ(parse_document(text, "here").checks->at(0).fault, TestFault::kPeer);
  EXPECT_EQ(parse_document(text, "here").ports[2].disuse, Disuse::kNotActive);
}

// Of an older release, without codes, and of a newer one, with codes that this one does not know.
TEST(InfoDocument, CodesMayBeMissingOrUnknown) {
  std::string text = format_json(make_sample_machine());
  const size_t at = text.find("\"not_active\"");
  ASSERT_NE(at, std::string::npos) << text;
  EXPECT_EQ(parse_document(text.replace(at, 12, "\"tomorrow\""), "here").ports[2].disuse, Disuse::kNone);
  EXPECT_EQ(parse_document(text.replace(at, 10, "null"), "here").ports[2].disuse, Disuse::kNone);
  EXPECT_THROW(parse_document("{\"schema_version\": 2}", "here"), ToolError);
}

}  // namespace
}  // namespace verbena::tools::info
