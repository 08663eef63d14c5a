// What cannot be: refused with the reason, and nothing moves. And room that runs out.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "transport/one_sided/address_blob.h"
#include "transport/one_sided/one_sided_endpoint.h"
#include "transport/one_sided/support/group.h"

namespace verbena::transport {
namespace {

using testing::HasSubstr;

constexpr size_t kBytes = 4 << 20;

class RefusalTest : public testing::Test {
 protected:
  void expect_refused(Posting posting, const char* why) {
    EXPECT_EQ(posting, Posting::kRefused);
    EXPECT_THAT(endpoint_.refusal(), HasSubstr(why));
  }

  std::vector<std::unique_ptr<Rank>> ranks_ = make_group(2, {.send_depth = 16, .max_message_bytes = 65536});
  verbena::Endpoint& endpoint_ = ranks_[0]->endpoint();
};

TEST_F(RefusalTest, NothingReachesBeyondARegion) {
  expect_refused(endpoint_.put({1, 0, kRegion, kRegion, 0, kBytes - 7, 8}, 0), "exceeds its region");
  expect_refused(endpoint_.put({1, 0, kRegion, kRegion, kBytes - 7, 0, 8}, 0), "exceeds its region");
  expect_refused(endpoint_.put({1, 0, kRegion, kRegion, 0, ~uint64_t{0}, 2}, 0), "exceeds its region");
  expect_refused(endpoint_.get({1, 0, kRegion, kRegion, ~uint64_t{0} - 3, 0, 8}, 0), "exceeds its region");
  expect_refused(endpoint_.put({1, 0, kRegion, kRegion, 8, 8, ~uint64_t{0} - 4}, 0), "exceeds its region");
  expect_refused(endpoint_.write_word({1, 0, kRegion, kBytes - 7}, 1, 0), "the word is outside the region");
  expect_refused(endpoint_.add_word({1, 0, kRegion, kBytes}, 1, 0), "the word is outside the region");
  expect_refused(endpoint_.read_word({1, 0, kRegion, ~uint64_t{0} - 7}, 0), "the word is outside the region");
  expect_refused(endpoint_.write_word({1, 0, kRegion, 12}, 1, 0), "the word is outside the region");
  EXPECT_EQ(endpoint_.count_taken(1, 0), 0U);
}

TEST_F(RefusalTest, WhatIsNotThereIsNamed) {
  expect_refused(endpoint_.put({2, 0, kRegion, kRegion, 0, 0, 8}, 0), "rank 2 of 2");
  expect_refused(endpoint_.put({1, 1, kRegion, kRegion, 0, 0, 8}, 0), "lane 1 of 1");
  expect_refused(endpoint_.put({1, 0, 4, kRegion, 0, 0, 8}, 0), "local, id 4");
  expect_refused(endpoint_.put({1, 0, kRegion, 64, 0, 0, 8}, 0), "remote, id 64");
  expect_refused(endpoint_.add_word({1, 0, 5, 0}, 1, 0), "remote, id 5");
  endpoint_.remove_remote_regions(kRegion);
  expect_refused(endpoint_.write_word({1, 0, kRegion, 0}, 1, 0), "remote");
}

TEST_F(RefusalTest, RoomRunsOutAndComesBack) {
  for (int lap = 0; lap < 3; ++lap) {
    uint32_t taken = 0;
    while (endpoint_.put({1, 0, kRegion, kRegion, 0, 0, 8}, 0) == Posting::kTaken) ++taken;
    EXPECT_EQ(taken, 16U);
    EXPECT_EQ(endpoint_.write_word({1, 0, kRegion, 0}, 1, 0), Posting::kFull);
    EXPECT_TRUE(ranks_[0]->drain(1, 0));
    // More parts than requests fit the queue: they leave as there is room.
    ASSERT_EQ(endpoint_.write_word({1, 0, kRegion, 0}, 1, 0), Posting::kTaken);
    EXPECT_EQ(endpoint_.put({1, 0, kRegion, kRegion, 0, 0, 65536 * 40}, 0), Posting::kTaken);
    EXPECT_TRUE(ranks_[0]->drain(1, 0));
  }
  EXPECT_EQ(endpoint_.count_taken(1, 0), 3U * 18U);
}

TEST_F(RefusalTest, AddressesAreTakenOnceAndOnlyOfThatPeer) {
  std::string error;
  EXPECT_FALSE(endpoint_.connect(1, ranks_[1]->endpoint().local_address(0, &error), &error));
  EXPECT_THAT(error, HasSubstr("cannot be connected"));
  const auto region = ranks_[1]->endpoint().region_address(kRegion);
  EXPECT_FALSE(endpoint_.add_remote_region(1, kRegion, region, &error)) << "exists already";
  EXPECT_FALSE(endpoint_.add_remote_region(1, 4, region, &error));
  EXPECT_THAT(error, HasSubstr("another region"));
  EXPECT_FALSE(endpoint_.add_region(kRegion, {.address = ranks_[0]->at(0), .bytes = 8}, &error));
  EXPECT_FALSE(endpoint_.add_region(4, {.address = nullptr, .bytes = 8}, &error));
  EXPECT_FALSE(endpoint_.add_region(4, {.address = reinterpret_cast<void*>(0x10000), .bytes = 4096}, &error));
  EXPECT_TRUE(endpoint_.local_address(2, &error).empty());
}

TEST_F(RefusalTest, AnotherGroupsAddressIsRefused) {
  std::string error;
  EndpointOptions options{.rank = 1, .count_ranks = 2, .nonce = 0x5eee};
  const auto stranger = verbena::Endpoint::open(options, &error);
  ASSERT_NE(stranger, nullptr) << error;
  const auto address = stranger->local_address(0, &error);
  options = {.rank = 0, .count_ranks = 2, .nonce = 0x5eed};
  const auto host = verbena::Endpoint::open(options, &error);
  ASSERT_NE(host, nullptr) << error;
  ASSERT_EQ(host->local_address(1, &error).size(), host->address_bytes());
  EXPECT_FALSE(host->connect(1, address, &error));
  EXPECT_THAT(error, HasSubstr("a different group"));
  EXPECT_EQ(host->put({1, 0, kRegion, kRegion, 0, 0, 8}, 0), Posting::kRefused);
  EXPECT_THAT(host->refusal(), HasSubstr("not connected"));
}

// A peer that cannot be reached as it says may say something else: nothing of the first attempt is used
// again.
TEST_F(RefusalTest, AfterAnAddressThatDoesNotWorkAnotherIsTaken) {
  std::string error;
  std::array<std::unique_ptr<verbena::Endpoint>, 2> ends;
  for (uint32_t rank = 0; rank < 2; ++rank) {
    ends[rank] = verbena::Endpoint::open(
        {.rank = rank, .count_ranks = 2, .nonce = 0x5eed, .rails = 1, .lanes = 2}, &error);
    ASSERT_NE(ends[rank], nullptr) << error;
  }
  const auto good = ends[1]->local_address(0, &error);
  PeerAddress address;
  ASSERT_TRUE(decode(good, {0x5eed, 1, 0, 2}, 2, 1, &address, &error)) << error;
  address.rails[0].port.mtu = 0;
  const auto first = ends[0]->local_address(1, &error);
  EXPECT_FALSE(ends[0]->connect(1, encode(address, 2, 1), &error));
  EXPECT_THAT(error, HasSubstr("cannot be reached"));
  const auto second = ends[0]->local_address(1, &error);
  EXPECT_NE(second, first);
  EXPECT_TRUE(ends[0]->connect(1, good, &error)) << error;
}

TEST_F(RefusalTest, OptionsOutOfRangeAreNamed) {
  const auto expect_refused_options = [](EndpointOptions options, const char* why) {
    std::string error;
    EXPECT_EQ(verbena::Endpoint::open(options, &error), nullptr);
    EXPECT_THAT(error, HasSubstr(why));
  };
  expect_refused_options({.rank = 2, .count_ranks = 2}, "rank");
  expect_refused_options({.count_ranks = 0}, "rank");
  expect_refused_options({.lanes = 17}, "lanes");
  expect_refused_options({.rails = 9}, "rails");
  expect_refused_options({.send_depth = 15}, "send_depth");
  expect_refused_options({.max_regions = 0}, "max_regions");
  expect_refused_options({.count_ranks = 4096, .lanes = 16, .send_depth = 32768}, "all completions");
  expect_refused_options({.device_filter = "nosuch"}, "no usable port");
}

// The completion queue's size grows with the ranks; devices of NVIDIA take 4,194,303 entries.
TEST(SendDepthTest, ManyRanksHaveShallowerLanes) {
  constexpr uint64_t kEntries = 4'194'303;
  const auto fit = [](uint32_t ranks) { return OneSidedEndpoint::fit_send_depth(kEntries, ranks, 4, 256); };
  EXPECT_EQ(fit(1), 256U);
  EXPECT_EQ(fit(4'000), 256U);
  EXPECT_EQ(fit(4'096), 255U);
  EXPECT_EQ(fit(20'000), 52U);
  EXPECT_EQ(fit(65'535), 16U);
  EXPECT_EQ(fit(1'000'000), 16U) << "too many: to be refused";
  for (uint32_t ranks = 1; ranks < 65'000; ranks += 17)
    ASSERT_LT(uint64_t{ranks} * 4 * fit(ranks), kEntries) << ranks;
  EXPECT_EQ(OneSidedEndpoint::fit_send_depth(0, 2, 4, 256), 16U);
}

}  // namespace
}  // namespace verbena::transport
