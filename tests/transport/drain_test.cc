// Connections that close while the device still has their receives: pages come back when it says so.
#include <gtest/gtest.h>

#include "transport/support/faulty_devices.h"
#include "transport/support/pool_probe.h"

namespace verbena::transport {
namespace {

using verbs::faulty::Hooks;

constexpr uint32_t kWindowPages = 64;
constexpr int kPairs = 2;  // of one connection with one rail, both ends

class DrainTest : public testing::Test {
 protected:
  DrainTest() { hooks_.holds_receives = hooks_.drops_last_events = false; }
  ~DrainTest() override { hooks_.holds_receives = hooks_.drops_last_events = false; }

  // A connection whose receiver closes when some pages have landed that it never saw.
  void abandon_pages() {
    apply_settings(PoolProbe::make_settings(kWindowPages));
    ConnectedPair connection = connect_here(nic_, nic_, true);
    Transfer transfer;
    transfer.messages.assign(4, {.length_bytes = 5 * 4096});
    transfer.sends_ahead = 4;
    hooks_.holds_receives = true;
    SendingSide sender(*connection.sender, nic_, transfer);
    EXPECT_TRUE(poll_until([&] { return sender.step(); }));
    connection.receiving.receiver.reset();
    connection.sender.reset();
  }
  void reap() { take(BouncePool::acquire(BouncePool::Kind::kHostPages), "the pool")->reap(); }
  bool wait_for_pairs(int count) {
    return poll_until([&] {
      reap();
      return hooks_.live_pairs == count;
    });
  }

  Hooks& hooks_ = find_hooks();
  Host host_{choose_faulty_devices()};
  const Nic& nic_ = host_.nic();
};

TEST_F(DrainTest, LateReceivesComeBackToThePool) {
  PoolProbe probe(nic_);
  abandon_pages();
  reap();
  EXPECT_EQ(hooks_.live_pairs, kPairs + 1) << "the receiver's is kept while the device may use it";
  hooks_.holds_receives = false;
  EXPECT_TRUE(wait_for_pairs(kPairs));
  probe.expect_whole();
}

TEST_F(DrainTest, ADeviceThatTellsNothingIsWaitedForNoLongerThanADeadline) {
  PoolProbe probe(nic_);
  hooks_.drops_last_events = true;
  abandon_pages();
  hooks_.holds_receives = false;
  EXPECT_TRUE(wait_for_pairs(kPairs));
  probe.expect_whole();
}

TEST_F(DrainTest, ThePoolGoesWithItsLastConnectionWhateverIsUnderWay) {
  hooks_.drops_last_events = true;
  abandon_pages();
  EXPECT_EQ(hooks_.live_pairs, 0);
}

// Each that closes looks at a few of those that closed before it and wait for the device, not at all of them.
TEST_F(DrainTest, ClosingManyLooksAtEachAFewTimes) {
  constexpr int kConnections = 100, kMaxPolls = 15;  // of each; with all of them: 50 on average
  hooks_.drops_last_events = true;
  std::vector<ConnectedPair> connections;
  for (int i = 0; i < kConnections; ++i) connections.push_back(connect_here(nic_, nic_, false));
  hooks_.polls = 0;
  for (ConnectedPair& connection : connections) connection.receiving.receiver.reset();
  EXPECT_GE(hooks_.polls, kConnections);
  EXPECT_LE(hooks_.polls, kMaxPolls * kConnections);
}

}  // namespace
}  // namespace verbena::transport
