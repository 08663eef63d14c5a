#include "base/network_interface.h"

#include <gtest/gtest.h>

namespace verbena::base {
namespace {

InterfaceAddress make(const char* name, IpFamily family, uint8_t first_byte, uint8_t second_byte = 0) {
  InterfaceAddress result{
      .name = name, .address = {.family = family}, .is_loopback = std::string(name) == "lo"};
  result.address.bytes[0] = first_byte;
  result.address.bytes[1] = second_byte;
  return result;
}

const std::vector<InterfaceAddress> kHost = {
    make("lo", IpFamily::kV4, 127),     make("docker0", IpFamily::kV4, 172),
    make("eth0", IpFamily::kV6, 0x20),  make("eth0", IpFamily::kV4, 10),
    make("eth1", IpFamily::kV4, 11),    make("ib0", IpFamily::kV6, 0xfe, 0x80),
    make("ib0", IpFamily::kV6, 0x20, 1)};

std::string name_selected(const char* filter) {
  const auto selected = select_interface(kHost, filter);
  return selected ? selected->name : "none";
}

TEST(InterfaceFilter, MatchesPrefixes) {
  EXPECT_TRUE(matches_filter("eth", "eth0"));
  EXPECT_TRUE(matches_filter("ib,eth", "eth0"));
  EXPECT_FALSE(matches_filter("eth0", "eth"));
  EXPECT_FALSE(matches_filter("ib,en", "eth0"));
  EXPECT_FALSE(matches_filter(",", "eth0"));
}

TEST(InterfaceFilter, MatchesExactNames) {
  EXPECT_TRUE(matches_filter("=eth1", "eth1"));
  EXPECT_FALSE(matches_filter("=eth1", "eth10"));
  EXPECT_TRUE(matches_filter("=ib0,eth1", "eth1"));
}

TEST(InterfaceFilter, Excludes) {
  EXPECT_FALSE(matches_filter("^docker,lo", "docker0"));
  EXPECT_TRUE(matches_filter("^docker,lo", "eth0"));
  EXPECT_FALSE(matches_filter("^=eth1", "eth1"));
  EXPECT_TRUE(matches_filter("^=eth1", "eth10"));
}

TEST(InterfaceSelection, PrefersTheFirstRealInterface) {
  EXPECT_EQ(name_selected(""), "eth0");
  EXPECT_EQ(select_interface(kHost, "")->address.family, IpFamily::kV4);
}

TEST(InterfaceSelection, FollowsTheFilter) {
  EXPECT_EQ(name_selected("=eth1"), "eth1");
  EXPECT_EQ(name_selected("^eth"), "ib0");
  EXPECT_EQ(name_selected("docker"), "docker0");
  EXPECT_EQ(name_selected("lo"), "lo");
  EXPECT_EQ(name_selected("^eth,ib"), "lo");
  EXPECT_EQ(name_selected("wlan"), "none");
}

TEST(InterfaceSelection, AvoidsLinkLocalAddresses) {
  EXPECT_FALSE(is_link_local(select_interface(kHost, "ib0")->address));
}

// The system lists an interface first that other hosts cannot reach, or that every host has alike.
TEST(InterfaceSelection, PrefersWhatOtherHostsReach) {
  const InterfaceAddress eth1 = make("eth1", IpFamily::kV4, 10);
  InterfaceAddress unplugged = make("eth0", IpFamily::kV4, 192, 168);
  unplugged.is_running = false;
  const InterfaceAddress unlikely[] = {make("bmc0", IpFamily::kV4, 169, 254),
                                       make("eth0", IpFamily::kV6, 0xfe, 0x80),
                                       unplugged,
                                       make("br-4f1c2a9e77d0", IpFamily::kV4, 172, 18),
                                       make("docker0", IpFamily::kV4, 172, 17),
                                       make("cni0", IpFamily::kV4, 10, 244),
                                       make("lo", IpFamily::kV4, 127)};
  for (const InterfaceAddress& first : unlikely) {
    const std::vector<InterfaceAddress> host = {first, eth1};
    EXPECT_EQ(select_interface(host, "")->name, "eth1") << first.name;
    EXPECT_EQ(select_interface(host, "^wlan")->name, "eth1") << first.name;
    EXPECT_EQ(select_interface(host, "=" + first.name)->name, first.name);
    EXPECT_EQ(select_interface(host, "^eth1")->name, first.name);
  }
  // An administrator's bridge counts as an ordinary interface.
  const std::vector<InterfaceAddress> bridged = {make("br-ex", IpFamily::kV4, 10), eth1};
  EXPECT_EQ(select_interface(bridged, "")->name, "br-ex");
}

// The prefix eth matches both.
TEST(InterfaceSelection, PrefersACarrierAmongThoseThatAreNamed) {
  std::vector<InterfaceAddress> host = {make("eth0", IpFamily::kV4, 10), make("eth1", IpFamily::kV4, 11)};
  host[0].is_running = false;
  EXPECT_EQ(select_interface(host, "eth")->name, "eth1");
  EXPECT_EQ(select_interface(host, "=eth0")->name, "eth0");
}

TEST(InterfaceSelection, TakesALinkLocalAddressBeforeLoopback) {
  const std::vector<InterfaceAddress> host = {make("lo", IpFamily::kV4, 127),
                                              make("eth0", IpFamily::kV6, 0xfe, 0x80)};
  EXPECT_EQ(select_interface(host, "")->name, "eth0");
}

TEST(InterfaceSelection, FallsBackToLoopback) {
  const std::vector<InterfaceAddress> alone = {kHost[0], kHost[1]};
  EXPECT_EQ(select_interface(alone, "")->name, "lo");
  EXPECT_FALSE(select_interface({}, ""));
}

TEST(InterfaceList, HasLoopback) {
  const auto interfaces = list_interface_addresses();
  ASSERT_TRUE(interfaces);
  bool found = false;
  for (const InterfaceAddress& entry : *interfaces) found |= entry.is_loopback;
  EXPECT_TRUE(found);
}

}  // namespace
}  // namespace verbena::base
