// Engines on devices with few address handles: peers with the same port share them, and a peer for which none
// is left fails alone. One process a test, as softverbs reads its profile once.
#include <gtest/gtest.h>

#include <bit>
#include <string>

#include "tests/base/log_capture.h"
#include "transport/support/datagram_ends.h"
#include "verbs/address_handles.h"
#include "verbs/device.h"

namespace verbena::transport {
namespace {

using datagram::Engine;
using datagram::Ways;
using protocol::datagram::EngineRail;
using protocol::datagram::kPaths;

class DatagramAddressHandleTest : public testing::Test {
 protected:
  explicit DatagramAddressHandleTest(const char* profile = "max_ah=3")
      : host_(Settings{{"SOFTVERBS_PROFILE", profile}, {"VERBENA_BOUNCE_BYTES", "8m"}}) {}

  std::shared_ptr<Engine> find_engine(int device, int rails = 1) {
    return take(Engine::find(host_.nic(rails, device), {}, false), "an engine");
  }
  Ways make_ways(Engine& engine, std::initializer_list<Engine*> rails_of_peer, bool has_many = false,
                 uint64_t id = 0) {
    std::vector<EngineRail> peer;
    for (Engine* const rail : rails_of_peer) peer.push_back(rail->rails()[0]->describe());
    auto name = (*rails_of_peer.begin())->name();
    name.id += id;
    Ways ways;
    EXPECT_TRUE(datagram::make_ways(engine.rails(), engine.name(), name, peer, has_many, &ways));
    return ways;
  }
  verbs::AddressHandles& handles(int device = 0) { return host_.nic(1, device).rails[0]->address_handles(); }

  base::LogCapture log_;
  Host host_;
};

TEST_F(DatagramAddressHandleTest, APeerWithoutAHandleFailsAlone) {
  const auto hub = find_engine(0), first = find_engine(1), third = find_engine(3);
  auto second = find_engine(2);
  Memory of_hub(host_.nic(), kDatagramBytes), of_first(host_.nic(1, 1), kDatagramBytes),
      of_second(host_.nic(1, 2), kDatagramBytes), of_third(host_.nic(1, 3), kDatagramBytes);
  // One handle is kept for answers.
  DatagramChannel to_first = connect_here(hub, first), to_second = connect_here(second, hub);
  ASSERT_TRUE(to_first.sending && to_second.receiving);
  EXPECT_EQ(handles().count(), 2U);
  EXPECT_TRUE(log_.warnings().empty());

  const DatagramChannel to_third = connect_here(hub, third);
  EXPECT_TRUE(to_third.has_failed_to_connect);
  const DatagramChannel from_third = connect_here(third, hub);
  EXPECT_TRUE(from_third.has_failed_to_accept);
  EXPECT_TRUE(from_third.has_failed_to_connect) << "it is told that its listener is closed";
  int told = 0;
  for (const std::string& line : log_.warnings())
    told += line.find("of the device's 3 address handles") != std::string::npos &&
                    line.find("VERBENA_TRANSPORT=connected") != std::string::npos
                ? 1
                : 0;
  EXPECT_EQ(told, 2);

  // The others go on, and the last peer with a port releases its handle.
  transfer(to_first, of_hub, of_first);
  transfer(to_second, of_second, of_hub);
  EXPECT_TRUE(connect_here(hub, first).sending) << "another channel needs no other handle";
  to_second = {};
  second.reset();
  EXPECT_TRUE(poll_until([&] { return handles().count() == 1; }));
  DatagramChannel again = connect_here(third, hub);
  ASSERT_TRUE(again.sending && again.receiving);
  transfer(again, of_third, of_hub);
}

// The limit holds for all processes of a host, so a device may refuse a handle that this process expects.
TEST_F(DatagramAddressHandleTest, OtherProcessesMayHaveTheHandles) {
  const auto engine = find_engine(0), first = find_engine(1), second = find_engine(2);
  handles().set_limit(1 << 20);
  {
    const Ways ways = make_ways(*engine, {first.get()});
    EXPECT_EQ(ways.handles.size(), 3U) << "as many paths as there are handles";
    EXPECT_EQ(ways.reachable, ~0U);
    EXPECT_TRUE(log_.warnings().empty());
    EXPECT_TRUE(connect_here(engine, second).has_failed_to_connect);
    ASSERT_EQ(log_.warnings().size(), 1U);
    EXPECT_NE(log_.warnings()[0].find("3 of the device's 1048576"), std::string::npos) << log_.warnings()[0];
  }
  EXPECT_EQ(handles().count(), 0U);
  EXPECT_TRUE(connect_here(engine, second).sending);
}

// A rail without a handle is left out, as one whose port does not reach the peer.
TEST_F(DatagramAddressHandleTest, APeerHasTheRailsThatHaveHandles) {
  const auto engine = find_engine(0, 2), first = find_engine(2), second = find_engine(3);
  const Ways of_others[] = {make_ways(*engine, {first.get()}), make_ways(*engine, {second.get()})};
  EXPECT_EQ(handles(0).count(), 2U);
  EXPECT_EQ(handles(1).count(), 2U);
  handles(1).set_limit(10);
  Ways ways = make_ways(*engine, {engine.get()});
  EXPECT_EQ(ways.handles.size(), 1U);
  EXPECT_EQ(ways.reachable, 0xAAAAAAAA) << "the second rail's paths";
}

TEST_F(DatagramAddressHandleTest, APeerOfFewHandlesHasOnePathForEachPairOfRails) {
  const auto engine = find_engine(0), first = find_engine(1), second = find_engine(2);
  const Ways ways = make_ways(*engine, {first.get(), second.get()});
  EXPECT_EQ(ways.handles.size(), 2U);
  EXPECT_EQ(static_cast<size_t>(std::popcount(ways.paths)), ways.handles.size());
  EXPECT_EQ(ways.reachable, ~0U);
  const Ways same = make_ways(*engine, {first.get(), second.get()}, false, 1);
  EXPECT_EQ(same.find(0), ways.find(0));
  EXPECT_EQ(same.find(1), ways.find(1));
}

class PlentyTest : public DatagramAddressHandleTest {
 protected:
  PlentyTest() : DatagramAddressHandleTest("max_ah=65536") {}
};

TEST_F(PlentyTest, PeersBehindOnePortShareAllPaths) {
  const auto engine = find_engine(0), first = find_engine(1);
  {
    Ways ways = make_ways(*engine, {first.get()});
    const Ways same = make_ways(*engine, {first.get()}, false, 1);
    EXPECT_EQ(ways.handles.size(), size_t{kPaths});
    EXPECT_EQ(ways.paths, ~0U);
    EXPECT_EQ(handles().count(), uint32_t{kPaths});
    for (uint32_t path = 0; path < kPaths; ++path) EXPECT_EQ(ways.find(path), same.find(path)) << path;
    ways = {};
    EXPECT_EQ(handles().count(), uint32_t{kPaths});
  }
  EXPECT_EQ(handles().count(), 0U);
}

// Many peers have one path each to the same port, and not all the same.
TEST_F(PlentyTest, ManyPeersTakeDifferentPaths) {
  const auto engine = find_engine(0), first = find_engine(1);
  std::vector<Ways> of_peers;
  uint32_t paths = 0;
  for (uint32_t id = 0; id < 2 * kPaths; ++id) {
    of_peers.push_back(make_ways(*engine, {first.get()}, true, id));
    EXPECT_EQ(of_peers.back().handles.size(), 1U);
    EXPECT_EQ(std::popcount(of_peers.back().paths), 1);
    paths |= of_peers.back().paths;
  }
  EXPECT_EQ(paths, ~0U);
  EXPECT_EQ(handles().count(), uint32_t{kPaths});
}

}  // namespace
}  // namespace verbena::transport
