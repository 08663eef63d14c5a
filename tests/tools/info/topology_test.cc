#include "verbena-info/text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include <cstdlib>
#include <fstream>

#include "common/error.h"
#include "common/program.h"
#include "tools/info/run_info.h"
#include "tools/info/sample_machine.h"

namespace verbena::tools::info {
namespace {

using testing::HasSubstr;

size_t count(const std::string& text, const std::string& part) {
  size_t found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

// Python's parser of XML says so.
bool is_well_formed(const std::string& text) {
  char path[] = "/tmp/verbena_info_XXXXXX";
  close(mkstemp(path));
  std::ofstream(path) << text;
  const ToolRun run = run_tool(
      std::string("python3 -c 'import sys,xml.etree.ElementTree as e; e.parse(sys.argv[1])' ") + path);
  unlink(path);
  EXPECT_EQ(run.status, 0) << run.output;
  return run.status == 0;
}

bool shows(const std::string& graph, const std::string& words) {
  return graph.find(words) != std::string::npos;
}

TEST(InfoPicture, ShowsWhatThereIs) {
  const std::string graph = draw_topology(make_sample_machine());
  for (const char* words :
       {"NUMA node 0", "NUMA node 1", "PCI switch 0000:17:00.0", "GPU 0\\nNVIDIA H200\\n0000:19:00.0",
        "mlx5_2 port 1\\nnot used\\nthe port is down", "network 10.0.1.0/24: 1 rail", "400 Gb/s, Ethernet",
        "2 GPUs, 2 usable ports, 2 networks"})
    EXPECT_TRUE(shows(graph, words)) << words << " in " << graph;
  // Each GPU and the NIC behind its switch, and none to the other.
  EXPECT_TRUE(shows(graph, "gpu0 -- \"mlx5_0 port 1\" [color=\"#4f9a48\"")) << graph;
  EXPECT_TRUE(shows(graph, "gpu1 -- \"mlx5_1 port 1\"")) << graph;
  EXPECT_EQ(count(graph, "#4f9a48"), 2U) << graph;
  EXPECT_TRUE(shows(graph, "\"mlx5_1 port 1\" -- \"network 10.0.1.0/24\"")) << graph;
}

TEST(InfoPicture, RailsOfOneSubnetShareTheirNetwork) {
  Document machine = make_sample_machine();
  machine.ports[1].gid->subnet = machine.ports[0].gid->subnet;
  const std::string graph = draw_topology(machine);
  EXPECT_TRUE(shows(graph, "network 10.0.0.0/24: 2 rails")) << graph;
  EXPECT_EQ(count(graph, " -- \"network 10.0.0.0/24\""), 2U) << graph;
}

TEST(InfoPicture, NamesAreQuoted) {
  Document machine = make_sample_machine();
  machine.host.name = "a\"b\\c\x01";
  EXPECT_TRUE(shows(draw_topology(machine), "graph \"Verbena on a\\\"b\\\\c\"")) << draw_topology(machine);
}

// What Graphviz makes of it, names that it could trip over included.
TEST(InfoPicture, IsDrawnByGraphviz) {
  if (find_program("dot").empty()) GTEST_SKIP() << "no dot: tools/setup test installs graphviz";
  Document machine = make_sample_machine();
  machine.host.name = "<\"a&b\">\\";
  machine.ports[0].device = "mlx5:0 \"";
  const ProgramResult drawn = run_program({find_program("dot"), "-Tsvg"}, draw_topology(machine), 60);
  ASSERT_EQ(drawn.status, 0) << drawn.output;
  EXPECT_TRUE(is_well_formed(drawn.output));
  for (const char* words :
       {">NUMA node 1<", ">GPU 0<", ">network 10.0.1.0/24: 1 rail<", "&lt;&quot;a&amp;b&quot;&gt;"})
    EXPECT_TRUE(shows(drawn.output, words)) << words << " in " << drawn.output;
  EXPECT_EQ(count(drawn.output, "class=\"node\""), 2U + 3 + 2);
  EXPECT_EQ(count(drawn.output, "class=\"edge\""), 2U + 2);
}

TEST(InfoPicture, WithoutGraphvizItSaysWhatToInstall) {
  const ToolRun run = expect_run(
      run_tool(std::string("VERBENA_IBVERBS_LIB=softverbs SOFTVERBS_JOB=info$$ PATH=/nonexistent ") +
               VERBENA_INFO + " --nccl /nonexistent --plugin " + PLUGIN + " --topology /tmp/never.svg"),
      kExitFailed);
  EXPECT_TRUE(shows(
      run.output, "cannot draw /tmp/never.svg: the program dot was not found in the PATH. Install graphviz"))
      << run.output;
}

TEST(InfoTopologyXml, PutsNicsBehindTheirSwitches) {
  const std::string xml = format_topology_xml(make_sample_machine());
  EXPECT_TRUE(is_well_formed(xml));
  const size_t node = xml.find("<cpu numaid=\"1\""),
               bridge = xml.find("<pci busid=\"0000:97:00.0\" class=\"0x060400\""),
               card = xml.find("<pci busid=\"0000:9a:00.0\" class=\"0x020000\""),
               net = xml.find("<net name=\"verbena_mlx5_1\"/>");
  ASSERT_NE(net, std::string::npos) << xml;
  EXPECT_LT(node, bridge);
  EXPECT_LT(bridge, card);
  EXPECT_LT(card, net);
  EXPECT_EQ(count(xml, "link_width=\"16\""), 4U);
  EXPECT_EQ(xml.find("mlx5_2"), std::string::npos);  // not the plugin's
}

TEST(InfoTopologyXml, PortsOfOneCardShareItsDevice) {
  Document machine = make_sample_machine();
  machine.ports[1].nic->card_path = machine.ports[0].nic->card_path = "/sys/devices/pci0000:15/0000:1a:00.0";
  const std::string xml = format_topology_xml(machine);
  EXPECT_EQ(count(xml, "class=\"0x020000\""), 1U) << xml;
  EXPECT_EQ(count(xml, "<net "), 2U);
}

TEST(InfoTopologyXml, TheToolWritesBothFiles) {
  const std::string folder = testing::TempDir() + "/verbena_info_" + std::to_string(getpid());
  expect_run(run_info("mkdir -p " + folder + "; SOFTVERBS_DEVICES=2",
                      "--topology " + folder + "/a.dot --topology-xml " + folder + "/a.xml"),
             kExitOk);
  const ToolRun xml = run_tool("cat " + folder + "/a.xml");
  const ToolRun graph = run_tool("cat " + folder + "/a.dot; rm -r " + folder);
  EXPECT_TRUE(is_well_formed(xml.output));
  EXPECT_TRUE(shows(graph.output, "softverbs1 port 1")) << graph.output;
  // Side by side: not functions of one card.
  EXPECT_THAT(xml.output, HasSubstr("ffff:e0:00.0"));
  EXPECT_THAT(xml.output, HasSubstr("ffff:e1:00.0"));
  EXPECT_EQ(run_info("", "--topology /nonexistent/a.dot").status, kExitFailed);
}

}  // namespace
}  // namespace verbena::tools::info
