#include "verbs/gid_choice.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>

#include <vector>

namespace verbena::verbs {
namespace {

constexpr GidPreference kIpv4RoceV2{};
constexpr GidPreference kIpv6RoceV2{true, 2};
constexpr GidPreference kIpv4RoceV1{false, 1};

GidEntry make_entry(int index, const char* address, GidType type = GidType::kRoceV2) {
  GidEntry entry{index, {}, type};
  EXPECT_EQ(inet_pton(AF_INET6, address, entry.gid), 1) << address;
  return entry;
}

// As a RoCE card shows it: each address twice, v1 before v2.
const std::vector<GidEntry> kCard = {
    make_entry(0, "fe80::1", GidType::kInfiniBandOrRoceV1),         make_entry(1, "fe80::1"),
    make_entry(2, "::ffff:10.0.0.1", GidType::kInfiniBandOrRoceV1), make_entry(3, "::ffff:10.0.0.1"),
    make_entry(4, "fd00::1", GidType::kInfiniBandOrRoceV1),         make_entry(5, "fd00::1"),
};

TEST(GidChoice, FollowsFamilyAndVersion) {
  EXPECT_EQ(choose_gid(kCard, kIpv4RoceV2), 3);
  EXPECT_EQ(choose_gid(kCard, kIpv6RoceV2), 5);
  EXPECT_EQ(choose_gid(kCard, kIpv4RoceV1), 2);
}

TEST(GidChoice, TakesTheOtherFamilyBeforeALinkLocalAddress) {
  const std::vector<GidEntry> table = {make_entry(0, "fe80::1"), make_entry(1, "fd00::1")};
  EXPECT_EQ(choose_gid(table, kIpv4RoceV2), 1);
}

TEST(GidChoice, TakesLinkLocalIfThereIsNothingElse) {
  const std::vector<GidEntry> table = {make_entry(0, "::"), make_entry(7, "fe80::1")};
  EXPECT_EQ(choose_gid(table, kIpv4RoceV2), 7);
}

TEST(GidChoice, TakesTheLowestIndexAmongEquals) {
  const std::vector<GidEntry> table = {make_entry(2, "::ffff:10.0.0.1"), make_entry(9, "::ffff:10.0.1.1")};
  EXPECT_EQ(choose_gid(table, kIpv4RoceV2), 2);
}

TEST(GidChoice, TrustsAnUnknownType) {
  const std::vector<GidEntry> table = {make_entry(0, "::ffff:10.0.0.1", GidType::kInfiniBandOrRoceV1),
                                       make_entry(1, "::ffff:10.0.0.1", GidType::kUnknown)};
  EXPECT_EQ(choose_gid(table, kIpv4RoceV2), 1);
  EXPECT_EQ(choose_gid(table, kIpv4RoceV1), 0);
}

TEST(GidChoice, AvoidsIpv4LinkLocal) {
  const std::vector<GidEntry> table = {make_entry(0, "::ffff:169.254.3.4"),
                                       make_entry(1, "::ffff:192.168.0.1")};
  EXPECT_EQ(choose_gid(table, kIpv4RoceV2), 1);
}

TEST(GidChoice, FindsNothingInAnEmptyTable) {
  EXPECT_EQ(choose_gid({}, kIpv4RoceV2), kNoGid);
  EXPECT_EQ(choose_gid(std::vector<GidEntry>{make_entry(0, "::")}, kIpv4RoceV2), kNoGid);
}

TEST(GidChoice, FormatsAsAddress) {
  EXPECT_EQ(format_gid(kCard[3].gid), "::ffff:10.0.0.1");
  EXPECT_EQ(format_gid(kCard[0].gid), "fe80::1");
}

}  // namespace
}  // namespace verbena::verbs
