#include <cmath>
#include <set>
#include <string>

#include "fixture.h"

// Texts and rates, which softverbs computes without a device.
namespace verbena::softverbs_test {
namespace {

// Each value from `first` to `last` has a text of its own, and what lies outside has another one.
template <typename Value>
void expect_own_texts(const char* (*describe)(Value), int first, int last) {
  std::set<std::string> texts = {describe(static_cast<Value>(last + 1))};
  for (int value = first; value <= last; ++value) {
    const std::string text = describe(static_cast<Value>(value));
    EXPECT_TRUE(texts.insert(text).second) << value << ": " << text;
  }
}

TEST(StringsTest, EveryValueHasATextOfItsOwn) {
  expect_own_texts(&ibv_wc_status_str, IBV_WC_SUCCESS, IBV_WC_GENERAL_ERR);
  expect_own_texts(&ibv_event_type_str, IBV_EVENT_CQ_ERR, IBV_EVENT_GID_CHANGE);
  expect_own_texts(&ibv_node_type_str, IBV_NODE_CA, IBV_NODE_RNIC);
  expect_own_texts(&ibv_port_state_str, IBV_PORT_NOP, IBV_PORT_ACTIVE_DEFER);
  EXPECT_STREQ(ibv_wc_status_str(IBV_WC_RNR_RETRY_EXC_ERR), "receiver-not-ready retries exceeded");
  EXPECT_STREQ(ibv_event_type_str(IBV_EVENT_PORT_ERR), "port error");
  EXPECT_STREQ(ibv_port_state_str(IBV_PORT_ACTIVE), "active");
}

// A rate's multiple is that of 2.5 Gb/s, rounded; what a lane carries is up to 7 % more or less.
TEST(StringsTest, RatesAreTheirMultiplesAndSpeeds) {
  for (int value = IBV_RATE_2_5_GBPS; value <= IBV_RATE_600_GBPS; ++value) {
    const auto rate = static_cast<ibv_rate>(value);
    const int multiple = ibv_rate_to_mult(rate), mbps = ibv_rate_to_mbps(rate);
    EXPECT_EQ(mult_to_ibv_rate(multiple), rate) << value;
    EXPECT_EQ(mbps_to_ibv_rate(mbps), rate) << value;
    EXPECT_LT(std::abs(1.0 - multiple * 2500.0 / mbps), 0.07) << value << ": " << multiple << ", " << mbps;
  }
  EXPECT_EQ(ibv_rate_to_mbps(IBV_RATE_100_GBPS), 103125);
  EXPECT_EQ(ibv_rate_to_mult(IBV_RATE_400_GBPS), 160);
}

TEST(StringsTest, RatesThatThereAreNot) {
  EXPECT_EQ(ibv_rate_to_mult(IBV_RATE_MAX), -1);
  EXPECT_EQ(ibv_rate_to_mbps(IBV_RATE_MAX), -1);
  EXPECT_EQ(mult_to_ibv_rate(3), IBV_RATE_MAX);
  EXPECT_EQ(mbps_to_ibv_rate(1000), IBV_RATE_MAX);
}

}  // namespace
}  // namespace verbena::softverbs_test
