#include "nccl-perf/topology_file.h"

#include <gtest/gtest.h>

#include <regex>
#include <set>
#include <vector>

namespace verbena::tools::nccl {
namespace {

std::vector<std::string> find_all(const std::string& text, const std::string& pattern) {
  std::vector<std::string> found;
  const std::regex expression(pattern);
  for (std::sregex_iterator match(text.begin(), text.end(), expression), end; match != end; ++match)
    found.push_back((*match)[1]);
  return found;
}

const std::vector<std::string> kFourRails = {"softverbs0", "softverbs1", "softverbs2", "softverbs3"};

TEST(TopologyFile, RailsSideBySideAreCardsOfTheirOwn) {
  const std::string xml = make_topology_xml("1", 4, RailPlacement::kSideBySide);
  EXPECT_EQ(find_all(xml, "cpu numaid=\"([^\"]*)\""), std::vector<std::string>{"1"});
  EXPECT_EQ(find_all(xml, "<nic><net name=\"([^\"]*)\""), kFourRails);
  EXPECT_EQ(find_all(xml, "<net name=\"verbena_([^\"]*)\""), kFourRails);
  EXPECT_TRUE(find_all(xml, "(0x060400)").empty());
  // NCCL takes functions of one device for ports of one card.
  const auto devices = find_all(xml, "busid=\"([^\"]*)[.][0-9]\"");
  EXPECT_EQ(std::set<std::string>(devices.begin(), devices.end()).size(), 4U);
}

TEST(TopologyFile, JoinedRailsAreFunctionsOfOneCardUnderABridge) {
  const std::string xml = make_topology_xml("-1", 4, RailPlacement::kJoined);
  EXPECT_EQ(find_all(xml, "<nic><net name=\"([^\"]*)\""), kFourRails);
  EXPECT_EQ(find_all(xml, "(0x060400)").size(), 1U);
  const auto addresses = find_all(xml, "busid=\"([^\"]*)\" class=\"0x020000\"");
  EXPECT_EQ(std::set<std::string>(addresses.begin(), addresses.end()).size(), 4U);
  const auto devices = find_all(xml, "busid=\"([^\"]*)[.][0-9]\" class=\"0x020000\"");
  EXPECT_EQ(std::set<std::string>(devices.begin(), devices.end()).size(), 1U);
}

TEST(TopologyFile, EveryElementIsClosed) {
  for (const RailPlacement placement : {RailPlacement::kSideBySide, RailPlacement::kJoined}) {
    const std::string xml = make_topology_xml("0", 2, placement);
    for (const char* name : {"system", "cpu", "pci", "nic"}) {
      EXPECT_EQ(find_all(xml, std::string("(<") + name + ")[ >]").size(),
                find_all(xml, std::string("(</") + name + ">)").size())
          << name;
    }
  }
}

}  // namespace
}  // namespace verbena::tools::nccl
