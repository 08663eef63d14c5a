#include "nccl-perf/topology_file.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

namespace verbena::tools::nccl {
namespace {

// What stands between each `before` and the next double quote.
std::vector<std::string> find_all(const std::string& text, const std::string& before) {
  std::vector<std::string> found;
  for (size_t at = text.find(before); at != std::string::npos; at = text.find(before, at + 1)) {
    const size_t begin = at + before.size();
    found.push_back(text.substr(begin, text.find('"', begin) - begin));
  }
  return found;
}

// Without the function: "ffff:e1:00.1" is device ffff:e1:00.
std::set<std::string> list_devices(const std::vector<std::string>& bus_ids) {
  std::set<std::string> devices;
  for (const std::string& bus_id : bus_ids) devices.insert(bus_id.substr(0, bus_id.find('.')));
  return devices;
}

const std::vector<std::string> kFourRails = {"softverbs0", "softverbs1", "softverbs2", "softverbs3"};

TEST(TopologyFile, RailsSideBySideAreCardsOfTheirOwn) {
  const std::string xml = make_topology_xml("1", 4, RailPlacement::kSideBySide);
  EXPECT_EQ(find_all(xml, "cpu numaid=\""), std::vector<std::string>{"1"});
  EXPECT_EQ(find_all(xml, "<nic><net name=\""), kFourRails);
  EXPECT_EQ(find_all(xml, "<net name=\"verbena_"), kFourRails);
  EXPECT_EQ(xml.find("0x060400"), std::string::npos);
  // NCCL takes functions of one device for ports of one card.
  EXPECT_EQ(list_devices(find_all(xml, "busid=\"")).size(), 4U);
}

TEST(TopologyFile, JoinedRailsAreFunctionsOfOneCardUnderABridge) {
  const std::string xml = make_topology_xml("-1", 4, RailPlacement::kJoined);
  EXPECT_EQ(find_all(xml, "<nic><net name=\""), kFourRails);
  const std::vector<std::string> bus_ids = find_all(xml, "busid=\"");
  ASSERT_EQ(bus_ids.size(), 5U);
  EXPECT_EQ(find_all(xml, bus_ids[0] + "\" class=\""), std::vector<std::string>{"0x060400"});
  const std::vector<std::string> cards(bus_ids.begin() + 1, bus_ids.end());
  EXPECT_EQ(std::set<std::string>(cards.begin(), cards.end()).size(), 4U);
  EXPECT_EQ(list_devices(cards).size(), 1U);
}

TEST(TopologyFile, EveryElementIsClosed) {
  for (const RailPlacement placement : {RailPlacement::kSideBySide, RailPlacement::kJoined}) {
    const std::string xml = make_topology_xml("0", 2, placement);
    for (const std::string name : {"system", "cpu", "pci", "nic"}) {
      const size_t opened = find_all(xml, "<" + name + " ").size() + find_all(xml, "<" + name + ">").size();
      EXPECT_EQ(opened, find_all(xml, "</" + name + ">").size()) << name;
      EXPECT_GT(opened, 0U) << name;
    }
  }
}

}  // namespace
}  // namespace verbena::tools::nccl
