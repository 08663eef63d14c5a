// What ranks tell each other: whatever is not exactly that is refused, and says what it is.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "transport/one_sided/address_blob.h"

namespace verbena::transport {
namespace {

using testing::HasSubstr;

constexpr BlobNames kNames{.nonce = 0x1234567890, .from = 2, .to = 5, .count_ranks = 8};
constexpr uint32_t kLanes = 3, kRails = 4, kId = 7;

// Of an endpoint with fewer rails than the group has agreed on.
PeerAddress make_peer_address() {
  PeerAddress address{.names = kNames, .word_rail = 1};
  for (uint8_t rail = 0; rail < kRails - 1; ++rail) {
    RailAddress& one = address.rails.emplace_back();
    for (size_t i = 0; i < sizeof(one.port.gid); ++i)
      one.port.gid[i] = static_cast<uint8_t>(16 * rail + i + 1);
    one.port.mtu = 5;
    for (uint32_t lane = 0; lane < kLanes; ++lane)
      one.lanes.push_back({100U * (rail + 1U) + lane, 200 + lane, {1, lane, 3}, 16});
  }
  address.records = {base::IpFamily::kV4, 4711, 0, {10, 0, 0, 7}};
  address.nonce.fill(5);
  address.secret.fill(6);
  return address;
}

constexpr RegionAddress kRegionAddress{.names = {kNames.nonce, kNames.from, 0, kNames.count_ranks},
                                       .id = kId,
                                       .base = 0x7f0000001000,
                                       .bytes = uint64_t{5} << 32,
                                       .keys = {0xfeedf00d, 0xfeedf00e}};

bool try_peer(std::span<const std::byte> bytes, std::string* problem, const BlobNames& expected = kNames,
              uint32_t lanes = kLanes) {
  PeerAddress found;
  return decode(bytes, expected, lanes, kRails, &found, problem);
}

bool try_region(std::span<const std::byte> bytes, std::string* problem, const BlobNames& expected = kNames,
                uint32_t id = kId) {
  RegionAddress found;
  return decode(bytes, expected, id, &found, problem);
}

TEST(AddressBlobTest, BringsBackWhatWentIn) {
  const PeerAddress sent = make_peer_address();
  const auto bytes = encode(sent, kLanes, kRails);
  EXPECT_EQ(bytes.size(), measure_peer_address(kLanes, kRails));
  PeerAddress found;
  std::string problem;
  ASSERT_TRUE(decode(bytes, kNames, kLanes, kRails, &found, &problem)) << problem;
  EXPECT_EQ(encode(found, kLanes, kRails), bytes);
  EXPECT_EQ(found.word_rail, 1U);
  EXPECT_EQ(found.records, sent.records);
  EXPECT_EQ(found.secret, sent.secret);
  ASSERT_EQ(found.rails.size(), kRails - 1);
  EXPECT_EQ(found.rails[2].port.gid[3], 36);
  ASSERT_EQ(found.rails[2].lanes.size(), kLanes);
  EXPECT_EQ(found.rails[2].lanes[2].number, 302U);
  EXPECT_EQ(found.rails[2].lanes[2].first_psn, 202U);
  EXPECT_EQ(found.rails[2].lanes[2].ece.options, 2U);
  EXPECT_EQ(found.rails[2].lanes[2].outstanding_reads, 16U);

  RegionAddress region;
  const auto region_bytes = encode(kRegionAddress);
  EXPECT_EQ(region_bytes.size(), measure_region_address());
  ASSERT_TRUE(decode(region_bytes, kNames, kId, &region, &problem)) << problem;
  EXPECT_EQ(region.keys, kRegionAddress.keys);
  EXPECT_EQ(region.base, kRegionAddress.base);
  EXPECT_EQ(region.bytes, kRegionAddress.bytes);
}

template <typename Try>
void expect_every_damage_refused(std::vector<std::byte> bytes, Try&& attempt) {
  std::string problem;
  for (size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_FALSE(attempt(std::span(bytes).first(length), &problem)) << length;
    EXPECT_THAT(problem, HasSubstr("length"));
  }
  for (size_t at = 0; at < bytes.size(); ++at) {
    for (const int flip : {0x01, 0x80, 0xff}) {
      bytes[at] ^= static_cast<std::byte>(flip);
      problem.clear();
      EXPECT_FALSE(attempt(bytes, &problem)) << "byte " << at;
      EXPECT_FALSE(problem.empty());
      bytes[at] ^= static_cast<std::byte>(flip);
    }
  }
  EXPECT_TRUE(attempt(bytes, &problem)) << problem;
  bytes.push_back({});
  EXPECT_FALSE(attempt(bytes, &problem)) << "a byte too many";
}

TEST(AddressBlobTest, RefusesEveryTruncationAndEveryChangedByte) {
  expect_every_damage_refused(encode(make_peer_address(), kLanes, kRails),
                              [](auto bytes, auto* problem) { return try_peer(bytes, problem); });
  expect_every_damage_refused(encode(kRegionAddress),
                              [](auto bytes, auto* problem) { return try_region(bytes, problem); });
}

TEST(AddressBlobTest, RefusesWhatWasMadeForOthersAndSaysSo) {
  const auto peer = encode(make_peer_address(), kLanes, kRails);
  const auto region = encode(kRegionAddress);
  std::string problem;
  const auto expect_refused = [&](BlobNames expected, const char* why) {
    EXPECT_FALSE(try_peer(peer, &problem, expected));
    EXPECT_THAT(problem, HasSubstr(why));
    problem.clear();
    if (expected.to != kNames.to) return;  // a region's address is the same for all
    EXPECT_FALSE(try_region(region, &problem, expected));
    EXPECT_THAT(problem, HasSubstr(why));
  };
  expect_refused({kNames.nonce + 1, kNames.from, kNames.to, kNames.count_ranks}, "a different group");
  expect_refused({kNames.nonce, kNames.from + 1, kNames.to, kNames.count_ranks}, "belongs to another rank");
  expect_refused({kNames.nonce, kNames.from, kNames.to + 1, kNames.count_ranks}, "for another rank");
  expect_refused({kNames.nonce, kNames.from, kNames.to, kNames.count_ranks + 1},
                 "a different number of ranks");
  EXPECT_FALSE(try_peer(peer, &problem, kNames, kLanes + 1));
  PeerAddress found;
  EXPECT_FALSE(decode(peer, kNames, kLanes, kRails - 1, &found, &problem));
  EXPECT_FALSE(try_region(region, &problem, kNames, kId + 1));
  EXPECT_THAT(problem, HasSubstr("another region"));
  EXPECT_FALSE(try_region(std::span(peer).first(region.size()), &problem));
}

TEST(AddressBlobTest, RefusesRailsThatThereAreNot) {
  std::string problem;
  PeerAddress address = make_peer_address();
  address.word_rail = kRails - 1;
  EXPECT_FALSE(try_peer(encode(address, kLanes, kRails), &problem));
  EXPECT_THAT(problem, HasSubstr("rail for words"));
  address.rails.clear();
  EXPECT_FALSE(try_peer(encode(address, kLanes, kRails), &problem));
  EXPECT_THAT(problem, HasSubstr("number of rails"));
}

TEST(AddressBlobTest, RefusesRangesThatNoMemoryHas) {
  std::string problem;
  RegionAddress address = kRegionAddress;
  address.bytes = 0;
  EXPECT_FALSE(try_region(encode(address), &problem));
  address.bytes = UINT64_MAX;
  EXPECT_FALSE(try_region(encode(address), &problem));
  EXPECT_THAT(problem, HasSubstr("range"));
}

}  // namespace
}  // namespace verbena::transport
