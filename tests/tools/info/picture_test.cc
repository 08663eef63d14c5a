#include "verbena-info/picture.h"

#include <gtest/gtest.h>

#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <regex>
#include <vector>

#include "common/error.h"
#include "tools/info/run_info.h"
#include "tools/info/sample_machine.h"
#include "verbena-info/svg.h"
#include "verbena-info/topology_xml.h"

namespace verbena::tools::info {
namespace {

std::vector<Box> find_boxes(const std::string& svg, const std::string& styles) {
  const std::regex pattern("<rect class=\"(?:" + styles +
                           ")\" x=\"([0-9.]+)\" y=\"([0-9.]+)\" width=\"([0-9.]+)\" height=\"([0-9.]+)\"");
  std::vector<Box> boxes;
  for (std::sregex_iterator at(svg.begin(), svg.end(), pattern), end; at != end; ++at)
    boxes.push_back({std::stod((*at)[1]), std::stod((*at)[2]), std::stod((*at)[3]), std::stod((*at)[4])});
  return boxes;
}

bool overlap(const Box& a, const Box& b) {
  return a.left < b.right() && b.left < a.right() && a.top < b.bottom() && b.top < a.bottom();
}

bool holds(const Box& outer, const Box& inner) {
  return outer.left <= inner.left && inner.right() <= outer.right() && outer.top <= inner.top &&
         inner.bottom() <= outer.bottom();
}

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

TEST(InfoPicture, ShowsWhatThereIs) {
  const std::string svg = draw_topology(make_sample_machine());
  EXPECT_TRUE(is_well_formed(svg));
  for (const char* words :
       {"NUMA node 0", "NUMA node 1", "PCI switch 0000:17:00.0", ">GPU 0<", ">mlx5_2 port 1<",
        "the port is down", "network 10.0.1.0/24: 1 rail", "400 Gb/s, Ethernet"})
    EXPECT_NE(svg.find(words), std::string::npos) << words;
  // A line between each GPU and the NIC behind its switch, and none to the other.
  EXPECT_EQ(count(svg, "<line class=\"near\""), 2U + 1U);  // and the legend's
}

TEST(InfoPicture, NothingOverlaps) {
  const std::string svg = draw_topology(make_sample_machine());
  const std::vector<Box> cards = find_boxes(svg, "gpu|nic|idle"), switches = find_boxes(svg, "switch"),
                         nodes = find_boxes(svg, "node");
  ASSERT_EQ(cards.size(), 5U);
  ASSERT_EQ(switches.size(), 2U);
  ASSERT_EQ(nodes.size(), 2U);
  for (size_t i = 0; i < cards.size(); ++i) {
    for (size_t j = i + 1; j < cards.size(); ++j) EXPECT_FALSE(overlap(cards[i], cards[j])) << i << " " << j;
    EXPECT_TRUE(holds(switches[0], cards[i]) || holds(switches[1], cards[i])) << i;
  }
  for (size_t i = 0; i < 2; ++i) EXPECT_TRUE(holds(nodes[i], switches[i])) << i;
}

TEST(InfoPicture, ALargeMachineKeepsItsPlaces) {
  const std::string svg = draw_topology(make_large_machine());
  EXPECT_TRUE(is_well_formed(svg));
  EXPECT_NE(svg.find("_15 port 1<"), std::string::npos) << "what tells it from the others";
  const std::vector<Box> cards = find_boxes(svg, "gpu|nic|idle"), switches = find_boxes(svg, "switch"),
                         networks = find_boxes(svg, "network");
  ASSERT_EQ(cards.size(), 24U);
  ASSERT_EQ(switches.size(), 8U);
  ASSERT_EQ(networks.size(), 16U);
  for (size_t i = 0; i < cards.size(); ++i) {
    for (size_t j = i + 1; j < cards.size(); ++j) EXPECT_FALSE(overlap(cards[i], cards[j])) << i << " " << j;
  }
  for (size_t i = 1; i < switches.size(); ++i) EXPECT_FALSE(overlap(switches[i - 1], switches[i])) << i;
  for (size_t i = 1; i < networks.size(); ++i) EXPECT_FALSE(overlap(networks[i - 1], networks[i])) << i;
  // Every letter of a card counts as one byte here.
  const std::regex text("<text class=\"(?:name|body)\"[^>]* text-anchor=\"middle\">([^<]*)</text>");
  for (std::sregex_iterator at(svg.begin(), svg.end(), text), end; at != end; ++at)
    EXPECT_LE((*at)[1].length(), 32) << (*at)[1];
}

TEST(InfoPicture, NetworksStandInTheOrderOfTheirNics) {
  Json machine = make_sample_machine();
  machine["devices"][0]["gid"]["subnet"] = "10.0.9.0/24";
  machine["devices"][1]["gid"]["subnet"] = "10.0.10.0/24";  // before it in the alphabet
  const std::string svg = draw_topology(machine);
  EXPECT_LT(svg.find("network 10.0.9.0/24"), svg.find("network 10.0.10.0/24"));
}

// A storage port in the midst of a network of GPUs' rails, and that network's ports on both NUMA nodes.
TEST(InfoPicture, RailsGoStraightToTheirNetworks) {
  Json machine = make_sample_machine();
  Json& ports = machine["devices"];
  ports.push_back(make_sample_port(3, "0000:1b:00.0", 0, "0000:17:00.0"));
  ports[0]["gid"]["subnet"] = ports[1]["gid"]["subnet"] = "fd00:7::/64";
  const std::string svg = draw_topology(machine);
  const std::vector<Box> networks = find_boxes(svg, "network"), nics = find_boxes(svg, "nic");
  ASSERT_EQ(networks.size(), 2U);
  ASSERT_EQ(nics.size(), 3U);
  EXPECT_FALSE(overlap(networks[0], networks[1]));
  EXPECT_LT(networks[0].width, networks[1].width);
  EXPECT_LT(networks[0].bottom(), networks[1].top);
  const std::vector<Box> bars = find_boxes(svg, "network|gpu|nic|idle");
  const std::regex pattern(
      R"re(<line class="rail" x1="([0-9.]+)" y1="([0-9.]+)" x2="([0-9.]+)" y2="([0-9.]+)")re");
  size_t vertical = 0;
  for (std::sregex_iterator at(svg.begin(), svg.end(), pattern), end; at != end; ++at) {
    const double x = std::stod((*at)[1]), top = std::stod((*at)[2]), bottom = std::stod((*at)[4]);
    if (top == bottom) continue;  // the legend's
    EXPECT_EQ(std::stod((*at)[3]), x);
    const Box line{x, top + 1, 0, bottom - top - 2};
    for (const Box& bar : bars) EXPECT_FALSE(overlap(line, bar)) << "a rail crosses what is not its network";
    ++vertical;
  }
  EXPECT_EQ(vertical, 3U);
}

TEST(InfoPicture, NamesAreEscapedAndCut) {
  Json machine = make_sample_machine();
  machine["host"]["name"] = "<\"a&b\">\x01";
  machine["gpus"]["devices"][0]["name"] = std::string(300, 'x');
  const std::string svg = draw_topology(machine);
  EXPECT_TRUE(is_well_formed(svg));
  EXPECT_NE(svg.find("&lt;&quot;a&amp;b&quot;&gt;"), std::string::npos);
  EXPECT_EQ(fit_text("short", 100, 12), "short");
  EXPECT_LT(fit_text(std::string(300, 'x'), 100, 12).size(), 20U);
  EXPECT_EQ(fit_text("\u00fc\u00fc\u00fc\u00fc\u00fc\u00fc", 27, 12), "\u00fc\u00fc\u2026\u00fc")
      << "no half letters";
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
  Json machine = make_sample_machine();
  machine["devices"][1]["card_path"] = machine["devices"][0]["card_path"] =
      "/sys/devices/pci0000:15/0000:1a:00.0";
  const std::string xml = format_topology_xml(machine);
  EXPECT_EQ(count(xml, "class=\"0x020000\""), 1U) << xml;
  EXPECT_EQ(count(xml, "<net "), 2U);
}

TEST(InfoTopologyXml, TheToolWritesBothFiles) {
  const std::string folder = testing::TempDir() + "/verbena_info_" + std::to_string(getpid());
  const ToolRun run = run_info("mkdir -p " + folder + "; SOFTVERBS_DEVICES=2",
                               "--topology " + folder + "/a.svg --topology-xml " + folder + "/a.xml");
  EXPECT_EQ(run.status, kExitOk) << run.output;
  const ToolRun xml = run_tool("cat " + folder + "/a.xml");
  const ToolRun svg = run_tool("cat " + folder + "/a.svg; rm -r " + folder);
  EXPECT_TRUE(is_well_formed(xml.output));
  EXPECT_TRUE(is_well_formed(svg.output));
  EXPECT_EQ(find_boxes(svg.output, "nic").size(), 2U);
  // Side by side: not functions of one card.
  EXPECT_NE(xml.output.find("ffff:e0:00.0"), std::string::npos) << xml.output;
  EXPECT_NE(xml.output.find("ffff:e1:00.0"), std::string::npos) << xml.output;
  EXPECT_EQ(run_info("", "--topology /nonexistent/a.svg").status, kExitFailed);
}

}  // namespace
}  // namespace verbena::tools::info
