#include "verbs/route.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>

#include <string>

namespace verbena::verbs {
namespace {

constexpr int kPrefixBits = 24;

PortAddress make_port(const char* gid, const char* other_gid = nullptr) {
  PortAddress port{};
  port.link_layer = kEthernet;
  port.mtu = 5;
  port.roce_version = 2;
  EXPECT_EQ(inet_pton(AF_INET6, gid, port.gid), 1) << gid;
  if (other_gid != nullptr) {
    EXPECT_EQ(inet_pton(AF_INET6, other_gid, port.other_gid), 1) << other_gid;
  }
  return port;
}

PortAddress make_infiniband(uint16_t lid, const char* gid) {
  PortAddress port = make_port(gid);
  port.link_layer = kInfiniBand;
  port.roce_version = 0;
  port.lid = lid;
  return port;
}

Reach judge(const PortAddress& left, const PortAddress& right) {
  const Reach reach = judge_reach(left, right, kPrefixBits);
  EXPECT_EQ(judge_reach(right, left, kPrefixBits), reach) << "both ends must agree";
  return reach;
}

TEST(Route, KnowsSubnets) {
  const PortAddress port = make_port("::ffff:10.0.0.1");
  EXPECT_EQ(judge(port, make_port("::ffff:10.0.0.2")), Reach::kSameSubnet);
  EXPECT_EQ(judge(port, make_port("::ffff:10.0.1.2")), Reach::kOtherSubnet);
  EXPECT_EQ(judge(make_port("fd00::1"), make_port("fd00::2")), Reach::kSameSubnet);
  EXPECT_EQ(judge(make_port("fd00::1"), make_port("fd00:1::2")), Reach::kOtherSubnet);
}

TEST(Route, KnowsSubnetsOfInfiniBand) {
  const PortAddress port = make_infiniband(1, "fe80::1");
  EXPECT_EQ(judge(port, make_infiniband(2, "fe80::2")), Reach::kSameSubnet);
  EXPECT_EQ(judge(port, make_infiniband(2, "fec0:0:0:1::2")), Reach::kOtherSubnet);
  EXPECT_EQ(judge(port, make_infiniband(2, "::")), Reach::kSameSubnet);
}

TEST(Route, NamesWhatCannotMeet) {
  const PortAddress port = make_port("::ffff:10.0.0.1");
  const auto expect_mismatch = [](const PortAddress& ours, const PortAddress& theirs, const char* why) {
    EXPECT_EQ(judge(ours, theirs), Reach::kNever) << why;
    EXPECT_EQ(explain_mismatch(ours, theirs), why);
  };
  expect_mismatch(port, make_infiniband(3, "fe80::1"),
                  "link layers differ (ours Ethernet, the peer's InfiniBand)");
  PortAddress other = make_port("::ffff:10.0.0.2");
  other.roce_version = 1;
  expect_mismatch(port, other, "RoCE versions differ (ours v2, the peer's v1)");
  other = port;
  other.link_layer = 0;
  expect_mismatch(port, other, "a port is down (ours Ethernet, the peer's down)");
  expect_mismatch(port, make_port("::"), "a port has no GID (ours ::ffff:10.0.0.1, the peer's none)");
  expect_mismatch(port, make_port("fd00::1"),
                  "no address family in common (ours ::ffff:10.0.0.1, the peer's fd00::1)");
}

TEST(Route, PartitionsNeedOneFullMember) {
  PortAddress left = make_port("::ffff:10.0.0.1"), right = make_port("::ffff:10.0.0.2");
  const auto reaches = [&](uint16_t ours, uint16_t theirs) {
    left.partition_key = ours;
    right.partition_key = theirs;
    return judge(left, right) != Reach::kNever;
  };
  EXPECT_TRUE(reaches(0xffff, 0xffff));
  EXPECT_TRUE(reaches(0xffff, 0x7fff));
  EXPECT_FALSE(reaches(0x7fff, 0x7fff)) << "two limited members";
  EXPECT_FALSE(reaches(0x8001, 0x8002));
  EXPECT_TRUE(reaches(0, 0x8002)) << "unknown";
  EXPECT_EQ(reaches(0x8001, 0x0002), false);
  EXPECT_EQ(explain_mismatch(left, right), "partition keys do not match (ours 0x8001, the peer's 0x0002)");
}

TEST(Route, UsesTheFamilyThatBothHave) {
  const auto choose = [](const PortAddress& ours, const PortAddress& theirs) {
    const GidMatch match = match_gids(ours, theirs), mirror = match_gids(theirs, ours);
    EXPECT_EQ(match.by_our_other, mirror.by_their_other);
    EXPECT_EQ(match.by_their_other, mirror.by_our_other);
    return std::string(match.by_our_other ? "other" : "first") + (match.by_their_other ? "-other" : "-first");
  };
  const PortAddress dual = make_port("::ffff:10.0.0.1", "2001:db8::1");
  EXPECT_EQ(choose(dual, make_port("::ffff:10.0.0.2")), "first-first");
  EXPECT_EQ(choose(dual, make_port("2001:db8::2")), "other-first");
  EXPECT_EQ(choose(dual, make_port("2001:db8::2", "::ffff:10.0.0.2")), "first-other");
  EXPECT_EQ(judge(dual, make_port("2001:db8::2")), Reach::kSameSubnet);
  EXPECT_EQ(judge(dual, make_port("2001:db8:1::2")), Reach::kOtherSubnet);
}

TEST(Route, DescribesPorts) {
  EXPECT_EQ(describe_port_address(make_port("::ffff:10.0.0.1")), "Ethernet ::ffff:10.0.0.1 (RoCE v2)");
  EXPECT_EQ(describe_port_address(make_port("::ffff:10.0.0.1", "fd00::1")),
            "Ethernet ::ffff:10.0.0.1 and fd00::1 (RoCE v2)");
  EXPECT_EQ(describe_port_address(make_infiniband(17, "fe80::1")), "InfiniBand lid 17 gid fe80::1");
  EXPECT_EQ(describe_port_address({}), "down");
}

}  // namespace
}  // namespace verbena::verbs
