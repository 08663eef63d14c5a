#include "transport/link/rail_pairing.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace verbena::transport {
namespace {

using verbs::PortAddress;

constexpr PairingOptions kDefault{};
constexpr PairingOptions kByOrder{PairingRule::kByOrder, 24};
constexpr PairingOptions kStrict{PairingRule::kSameSubnet, 24};

PortAddress make_port(const std::string& ipv4) {
  PortAddress port{};
  port.link_layer = ipv4.empty() ? 0 : verbs::kEthernet;
  port.roce_version = 2;
  if (!ipv4.empty()) {
    EXPECT_EQ(inet_pton(AF_INET6, ("::ffff:" + ipv4).c_str(), port.gid), 1) << ipv4;
  }
  return port;
}

// Host `host`'s rails, one in each of these subnets 10.0.x.0/24; -1: a port that is down.
std::vector<PortAddress> make_rails(int host, const std::vector<int>& subnets) {
  std::vector<PortAddress> rails;
  for (const int subnet : subnets) {
    rails.push_back(
        make_port(subnet < 0 ? "" : "10.0." + std::to_string(subnet) + "." + std::to_string(host)));
  }
  return rails;
}

// "0-1 1-0": for each queue pair the sender's and the receiver's rail.
std::string pair(const std::vector<int>& sender, const std::vector<int>& receiver, uint32_t queue_pairs,
                 const PairingOptions& options = kDefault) {
  std::string text;
  for (const RailPath& path :
       pair_rails(make_rails(1, sender), make_rails(2, receiver), queue_pairs, options)) {
    EXPECT_EQ(path.sender_rail, path.origin % sender.size());
    text += (text.empty() ? "" : " ") + std::to_string(path.sender_rail) + "-" +
            std::to_string(path.receiver_rail);
  }
  return text;
}

TEST(RailPairing, GoesRoundInOneSubnet) {
  EXPECT_EQ(pair({0, 0}, {0, 0}, 2), "0-0 1-1");
  EXPECT_EQ(pair({0}, {0, 0, 0}, 3), "0-0 0-1 0-2");
  EXPECT_EQ(pair({0, 0, 0}, {0, 0}, 3), "0-0 1-1 2-0");
  EXPECT_EQ(pair({0, 0}, {0, 0}, 4), "0-0 1-1 0-0 1-1");
}

TEST(RailPairing, StaysInTheSubnet) {
  EXPECT_EQ(pair({0, 1}, {1, 0}, 2), "0-1 1-0");
  EXPECT_EQ(pair({0, 1}, {1, 0}, 4), "0-1 1-0 0-1 1-0");
  EXPECT_EQ(pair({0, 1}, {0, 0, 1, 1}, 4), "0-0 1-2 0-1 1-3");
  EXPECT_EQ(pair({1}, {0, 1}, 2), "0-1 0-1");
}

TEST(RailPairing, LeavesOutRailsWithoutAPartner) {
  EXPECT_EQ(pair({0, 1, 2}, {0, 1}, 3), "0-0 1-1");
  EXPECT_EQ(pair({0, 3}, {4, 0}, 2), "0-1");
  EXPECT_EQ(pair({0, -1}, {0, 0}, 2), "0-0");
  EXPECT_EQ(pair({0, 0}, {-1, 0}, 2), "0-1 1-1");
}

// Then something routes, or nothing would work at all.
TEST(RailPairing, GoesByOrderWhereNoSubnetIsShared) {
  EXPECT_EQ(pair({0, 1}, {2, 3}, 2), "0-0 1-1");
  EXPECT_EQ(pair({0, 1}, {2, 3}, 2, kStrict), "");
  EXPECT_EQ(pair({0, 1}, {1, 0}, 2, kByOrder), "0-0 1-1");
}

TEST(RailPairing, FindsNothingWhereNothingIsUp) {
  EXPECT_EQ(pair({-1}, {0}, 1), "");
  EXPECT_EQ(pair({0}, {-1, -1}, 2, kByOrder), "");
}

TEST(RailPairing, SaysWhyWithBothEnds) {
  const std::string strict = explain_no_path(make_rails(1, {0}), make_rails(2, {3}), kStrict);
  EXPECT_NE(strict.find("VERBENA_SUBNET_PAIRING=1"), std::string::npos) << strict;
  EXPECT_THAT(strict, testing::HasSubstr(
                          "rails of this rank: 1 rail: Ethernet ::ffff:10.0.0.1 (RoCE v2) in 10.0.0.0/24"));
  EXPECT_THAT(strict, testing::HasSubstr(
                          "rails of the peer: 1 rail: Ethernet ::ffff:10.0.3.2 (RoCE v2) in 10.0.3.0/24"));
  const std::string down = explain_no_path(make_rails(1, {0, 1}), make_rails(2, {-1}), kDefault);
  EXPECT_NE(down.find("a port is down (ours Ethernet, the peer's down)"), std::string::npos) << down;
  EXPECT_NE(down.find("rails of this rank: 2 rails:"), std::string::npos) << down;
}

}  // namespace
}  // namespace verbena::transport
