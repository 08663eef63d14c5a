// Which rails carry what, by the sender's own counters. Links of unequal speed are the faulty library's word.
#include <gtest/gtest.h>

#include <numeric>
#include <set>

#include "transport/support/faulty_devices.h"
#include "transport/support/transfer.h"

namespace verbena::transport {
namespace {

constexpr size_t kStripeBytes = 65536;

class RailUseTest : public testing::TestWithParam<int> {
 protected:
  ~RailUseTest() override { find_hooks().slow_devices = 0; }

  static Settings make_settings(const char* threshold) {
    Settings settings = choose_faulty_devices();
    settings.emplace_back("VERBENA_UNPACK", "1");
    settings.emplace_back("VERBENA_UNPACK_THRESHOLD", threshold);
    settings.emplace_back("VERBENA_MIN_STRIPE_BYTES", std::to_string(kStripeBytes));
    return settings;
  }
  static std::array<uint64_t, protocol::kMaxQueuePairs> send(ConnectedPair& connection, const Nic& nic,
                                                             size_t length_bytes, uint32_t count) {
    Transfer transfer;
    transfer.messages.assign(count, {.length_bytes = length_bytes});
    transfer.sends_ahead = transfer.receives_ahead = 1;
    const auto before = connection.sender->statistics().sent_rail_bytes;
    expect_transfer_here(connection, nic, nic, transfer);
    auto sent = connection.sender->statistics().sent_rail_bytes;
    for (size_t r = 0; r < sent.size(); ++r) sent[r] -= before[r];
    EXPECT_EQ(std::accumulate(sent.begin(), sent.end(), uint64_t{0}), count * length_bytes);
    return sent;
  }
  static std::set<size_t> list_used(const std::array<uint64_t, protocol::kMaxQueuePairs>& bytes) {
    std::set<size_t> used;
    for (size_t r = 0; r < bytes.size(); ++r)
      if (bytes[r] != 0) used.insert(r);
    return used;
  }
};

TEST_P(RailUseTest, ShortMessagesOfAConnectionStayOnOneRailAndConnectionsDiffer) {
  for (const char* threshold : {"0", "unlimited"}) {
    auto [host, nic] = OwnNic(GetParam(), make_settings(threshold));
    std::set<size_t> homes;
    std::vector<ConnectedPair> connections;
    for (int i = 0; i < 24; ++i) {
      connections.push_back(connect_here(nic, nic, true));
      const auto used = list_used(send(connections.back(), nic, 8, 50));
      EXPECT_EQ(used.size(), 1U);
      homes.merge(std::set<size_t>(used));
    }
    EXPECT_EQ(homes.size(), static_cast<size_t>(GetParam())) << "threshold " << threshold;
  }
}

TEST_P(RailUseTest, LongMessagesUseAllRails) {
  for (const char* threshold : {"0", "unlimited"}) {
    auto [host, nic, connection] = OwnConnection(GetParam(), make_settings(threshold));
    const auto sent = send(connection, nic, 1 << 20, 1);
    EXPECT_EQ(list_used(sent).size(), static_cast<size_t>(GetParam())) << "threshold " << threshold;
    for (int r = 0; r < GetParam(); ++r) EXPECT_GE(sent[static_cast<size_t>(r)], kStripeBytes);
  }
}

TEST_P(RailUseTest, AMessageShorterThanTwoStripesIsNotSplit) {
  auto [host, nic, connection] = OwnConnection(GetParam(), make_settings("0"));
  EXPECT_EQ(list_used(send(connection, nic, 2 * kStripeBytes - 1, 1)).size(), 1U);
  EXPECT_EQ(list_used(send(connection, nic, 2 * kStripeBytes, 1)).size(), 2U);
}

// The first message of a connection knows nothing but the links, whichever end's is the slow one: a quarter
// of the speed, a quarter of the bytes.
TEST_P(RailUseTest, UnequalLinksShareTheFirstMessageByTheirSpeed) {
  for (const char* threshold : {"0", "unlimited"}) {
    Settings settings = make_settings(threshold);
    settings.emplace_back("VERBENA_WINDOW_PAGES", "400");
    find_hooks().slow_devices = 1;  // the first one, 100 of the others' 400 Gb/s
    Host slow_host(settings);
    find_hooks().slow_devices = 0;
    Host host(settings);
    const Nic &equal = host.nic(GetParam()), &unequal = slow_host.nic(GetParam());
    for (const auto& [sending, receiving] : {std::pair(&equal, &unequal), std::pair(&unequal, &equal)}) {
      ConnectedPair connection = connect_here(*sending, *receiving, true);
      constexpr size_t kBytes = 1 << 20;
      Transfer transfer;
      transfer.messages.assign(1, {.length_bytes = kBytes});
      expect_transfer_here(connection, *sending, *receiving, transfer);
      const double part = 1.0 / (1 + 4 * (GetParam() - 1));
      EXPECT_NEAR(static_cast<double>(connection.sender->statistics().sent_rail_bytes[0]), part * kBytes,
                  20'000)
          << "threshold " << threshold << (sending == &unequal ? ", sender's" : ", receiver's");
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Rails, RailUseTest, testing::Values(2, 3, 4),
                         [](const auto& rails) { return std::to_string(rails.param); });

}  // namespace
}  // namespace verbena::transport
