#include "verbena-info/text.h"

#include <gtest/gtest.h>

#include "common/error.h"
#include "tools/info/sample_machine.h"
#include "verbena-info/advice.h"
#include "verbena-info/text_part.h"

namespace verbena::tools::info {
namespace {

TEST(InfoText, NamesVersionsShortly) {
  EXPECT_EQ(format_versions(Json{7, 8, 9, 10}), "v7 to v10");
  EXPECT_EQ(format_versions(Json{2, 4, 5}), "v2, v4 to v5");
  EXPECT_EQ(format_versions(Json::array()), "none");
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
  EXPECT_NE(text.find("0000:9b:00.0, NUMA node 1, behind PCI switch 0000:97:00.0"), std::string::npos)
      << text;
  EXPECT_NE(text.find("mlx5_2 port 1  NOT USED: the port is down"), std::string::npos) << text;
}

TEST(InfoText, ColumnsAreAsWideAsNames) {
  Json machine = make_sample_machine();
  machine["devices"][1]["name"] = "verbena_" + std::string(40, 'x');
  const std::string text = format_document(machine, {});
  EXPECT_NE(text.find("\n    verbena_mlx5_0" + std::string(35, ' ') + "PIX    SYS"), std::string::npos)
      << text;
  EXPECT_NE(text.find(std::string(40, 'x') + " SYS    PIX"), std::string::npos) << text;
}

TEST(InfoText, SaysHowNcclComesToLoadThePlugin) {
  Json machine = make_sample_machine();
  EXPECT_NE(format_document(machine, {}).find("export NCCL_NET_PLUGIN=verbena (not set now), with /opt in"),
            std::string::npos);
  machine["environment"]["NCCL_NET_PLUGIN"] = "verbena";
  EXPECT_EQ(format_document(machine, {}).find("not set now"), std::string::npos);
}

bool advises(Json document, const std::string& words) {
  add_advice(document);
  return document["advice"].dump().find(words) != std::string::npos;
}

TEST(InfoAdvice, NamesWhatIsWrongAndOnlyThat) {
  Json machine = make_sample_machine();
  EXPECT_TRUE(advises(machine, "mlx5_2 port 1 is down"));
  EXPECT_FALSE(advises(machine, "ulimit"));
  EXPECT_FALSE(advises(machine, "GPUDirect"));
  machine["host"]["memlock_limit_bytes"] = 65536;
  EXPECT_TRUE(advises(machine, "ulimit -l unlimited"));
  machine["devices"][0]["gpu_memory"] = {
      {"path", "none"}, {"why", "because"}, {"try", "modprobe nvidia_peermem"}};
  EXPECT_TRUE(advises(machine, "modprobe nvidia_peermem"));
  machine["devices"][0]["gid_reason"] = "link-local; no entry is RoCE v2: the only entry";
  EXPECT_TRUE(advises(machine, "ip address add"));
  machine["devices"][0]["gid_reason"] = "RoCE v2 and IPv4: the best of 4 entries";
  EXPECT_FALSE(advises(machine, "ip address add"));
  machine["devices"][0]["gid_reason"] = "RoCE v2 and link-local: the only entry";
  EXPECT_TRUE(advises(machine, "ip address add"));
  machine["devices"][2]["interface"] = "eth7";
  EXPECT_TRUE(advises(machine, "ip link set eth7 up"));
}

TEST(InfoAdvice, JudgesByExitStatus) {
  Json machine = make_sample_machine();
  EXPECT_EQ(judge(machine), kExitOk);
  machine["plugin"]["problem"] = "cannot load the plugin";
  EXPECT_EQ(judge(machine), kExitFailed);
  for (Json& device : machine["devices"]) device["usable"] = false;
  EXPECT_EQ(judge(machine), kExitNoDevice);
}

}  // namespace
}  // namespace verbena::tools::info
