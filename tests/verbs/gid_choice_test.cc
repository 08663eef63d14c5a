#include "verbs/gid_choice.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>

#include <vector>

namespace verbena::verbs {
namespace {

constexpr GidPreference kAuto{};
constexpr GidPreference kIpv4RoceV2{GidFamily::kIpv4, 2, {}};
constexpr GidPreference kIpv6RoceV2{GidFamily::kIpv6, 2, {}};
constexpr GidPreference kIpv4RoceV1{GidFamily::kIpv4, 1, {}};

GidEntry make_entry(int index, const char* address, GidType type = GidType::kRoceV2) {
  GidEntry entry{index, {}, type};
  EXPECT_EQ(inet_pton(AF_INET6, address, entry.gid), 1) << address;
  return entry;
}

int choose_index(std::span<const GidEntry> table, const GidPreference& preference) {
  const GidEntry* entry = choose_gid(table, preference);
  return entry == nullptr ? kNoGid : entry->index;
}

AddressRange make_range(const char* text) {
  AddressRange range;
  EXPECT_TRUE(parse_address_range(text, &range)) << text;
  return range;
}

// As a RoCE card shows it: each address twice, v1 before v2.
const std::vector<GidEntry> kCard = {
    make_entry(0, "fe80::1", GidType::kInfiniBandOrRoceV1),         make_entry(1, "fe80::1"),
    make_entry(2, "::ffff:10.0.0.1", GidType::kInfiniBandOrRoceV1), make_entry(3, "::ffff:10.0.0.1"),
    make_entry(4, "fd00::1", GidType::kInfiniBandOrRoceV1),         make_entry(5, "fd00::1"),
};

TEST(GidChoice, FollowsFamilyAndVersion) {
  EXPECT_EQ(choose_index(kCard, kIpv4RoceV2), 3);
  EXPECT_EQ(choose_index(kCard, kIpv6RoceV2), 5);
  EXPECT_EQ(choose_index(kCard, kIpv4RoceV1), 2);
}

TEST(GidChoice, TakesTheOtherFamilyBeforeALinkLocalAddress) {
  const std::vector<GidEntry> table = {make_entry(0, "fe80::1"), make_entry(1, "fd00::1")};
  EXPECT_EQ(choose_index(table, kIpv4RoceV2), 1);
}

TEST(GidChoice, TakesLinkLocalIfThereIsNothingElse) {
  const std::vector<GidEntry> table = {make_entry(0, "::"), make_entry(7, "fe80::1")};
  EXPECT_EQ(choose_index(table, kIpv4RoceV2), 7);
}

TEST(GidChoice, PrefersAnAddressOfThisNamespace) {
  std::vector<GidEntry> table = {make_entry(0, "fe80::1"), make_entry(1, "::ffff:10.0.0.1"),
                                 make_entry(2, "::ffff:10.0.0.2"), make_entry(3, "2001:db8::1"),
                                 make_entry(4, "2001:db8::2")};
  EXPECT_EQ(choose_index(table, kAuto), 1);
  table[2].is_own = table[4].is_own = true;
  EXPECT_EQ(choose_index(table, kAuto), 2);
  EXPECT_EQ(choose_index(table, kIpv6RoceV2), 4);
  const GidEntry* other = choose_other_gid(table, kAuto, table[2]);
  ASSERT_NE(other, nullptr);
  EXPECT_EQ(other->index, 4);
  table[2].is_own = false;
  table[2].type = GidType::kInfiniBandOrRoceV1;
  table[2].is_own = true, table[4].is_own = false;
  EXPECT_EQ(choose_index(table, kAuto), 2)
      << "another container's address is of no use, whatever its version";
}

TEST(GidChoice, TakesTheLowestIndexAmongEquals) {
  const std::vector<GidEntry> table = {make_entry(2, "::ffff:10.0.0.1"), make_entry(9, "::ffff:10.0.1.1")};
  EXPECT_EQ(choose_index(table, kIpv4RoceV2), 2);
}

TEST(GidChoice, TrustsAnUnknownType) {
  const std::vector<GidEntry> table = {make_entry(0, "::ffff:10.0.0.1", GidType::kInfiniBandOrRoceV1),
                                       make_entry(1, "::ffff:10.0.0.1", GidType::kUnknown)};
  EXPECT_EQ(choose_index(table, kIpv4RoceV2), 1);
  EXPECT_EQ(choose_index(table, kIpv4RoceV1), 0);
}

TEST(GidChoice, AvoidsIpv4LinkLocal) {
  const std::vector<GidEntry> table = {make_entry(0, "::ffff:169.254.3.4"),
                                       make_entry(1, "::ffff:192.168.0.1")};
  EXPECT_EQ(choose_index(table, kIpv4RoceV2), 1);
}

TEST(GidChoice, FindsNothingInAnEmptyTable) {
  EXPECT_EQ(choose_index({}, kIpv4RoceV2), kNoGid);
  EXPECT_EQ(choose_index(std::vector<GidEntry>{make_entry(0, "::")}, kIpv4RoceV2), kNoGid);
}

TEST(GidChoice, OrdersByKindOfAddress) {
  std::vector<GidEntry> table = {make_entry(0, "fe80::1"), make_entry(1, "fd00::1"),
                                 make_entry(2, "2001:db8::1"), make_entry(3, "::ffff:10.0.0.1")};
  for (int best = 3; best >= 0; --best) {
    EXPECT_EQ(choose_index(table, kAuto), best);
    table.pop_back();
  }
}

TEST(GidChoice, VersionCountsMoreThanTheKindOfAddress) {
  const std::vector<GidEntry> table = {make_entry(0, "::ffff:10.0.0.1", GidType::kInfiniBandOrRoceV1),
                                       make_entry(1, "fe80::1")};
  EXPECT_EQ(choose_index(table, kAuto), 1);
}

TEST(GidChoice, KeepsToTheRange) {
  GidPreference preference = kAuto;
  preference.range = make_range("fd00::/16");
  EXPECT_EQ(choose_index(kCard, preference), 5);
  preference.range = make_range("10.0.0.0/24");
  EXPECT_EQ(choose_index(kCard, preference), 3);
  preference.range = make_range("10.0.1.0/24");
  EXPECT_EQ(choose_index(kCard, preference), kNoGid);
}

TEST(GidChoice, ReadsRanges) {
  EXPECT_TRUE(make_range("10.1.0.0/15").contains(make_entry(0, "::ffff:10.0.200.1").gid));
  EXPECT_FALSE(make_range("10.1.0.0/16").contains(make_entry(0, "::ffff:10.2.0.1").gid));
  EXPECT_TRUE(make_range("").contains(make_entry(0, "fe80::1").gid));
  EXPECT_FALSE(make_range("0.0.0.0/0").contains(make_entry(0, "fe80::1").gid)) << "all of IPv4";
  AddressRange range;
  for (const char* text : {"10.0.0.0", "10.0.0.0/33", "fd00::/129", "fd00::/x", "fd00::/-1", "/8", "x/8"})
    EXPECT_FALSE(parse_address_range(text, &range)) << text;
}

TEST(GidChoice, OffersAnAddressOfTheOtherFamily) {
  const GidEntry& first = kCard[3];
  const GidEntry* other = choose_other_gid(kCard, kAuto, first);
  ASSERT_NE(other, nullptr);
  EXPECT_EQ(other->index, 5);
  const std::vector<GidEntry> local_only = {make_entry(1, "fe80::1"), first};
  EXPECT_EQ(choose_other_gid(local_only, kAuto, first), nullptr);
}

TEST(GidChoice, KnowsSubnets) {
  const auto same = [](const char* left, const char* right, int bits) {
    return is_same_subnet(make_entry(0, left).gid, make_entry(0, right).gid, bits);
  };
  EXPECT_TRUE(same("::ffff:10.0.0.1", "::ffff:10.0.0.2", 24));
  EXPECT_FALSE(same("::ffff:10.0.0.1", "::ffff:10.0.1.1", 24));
  EXPECT_TRUE(same("::ffff:10.0.0.1", "::ffff:10.0.1.1", 23));
  EXPECT_FALSE(same("::ffff:10.0.0.1", "::ffff:10.0.0.2", 32));
  EXPECT_TRUE(same("fd00:1::1", "fd00:1::2", 24));
  EXPECT_FALSE(same("fd00:1::1", "fd00:2::1", 24));
  EXPECT_FALSE(same("fd00:1::1", "::ffff:10.0.0.1", 1));
  EXPECT_EQ(format_subnet(make_entry(0, "::ffff:10.0.3.77").gid, 23), "10.0.2.0/23");
  EXPECT_EQ(format_subnet(make_entry(0, "fd00:1::1").gid, 24), "fd00:1::/64");
}

TEST(GidChoice, FormatsAsAddress) {
  EXPECT_EQ(format_gid(kCard[3].gid), "::ffff:10.0.0.1");
  EXPECT_EQ(format_gid(kCard[0].gid), "fe80::1");
}

}  // namespace
}  // namespace verbena::verbs
