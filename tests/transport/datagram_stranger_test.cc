// Whoever knows an engine's queue pairs and their key can send them anything: nothing of it stops the engine.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "transport/datagram/engine.h"
#include "transport/datagram/meeting.h"
#include "transport/support/connection.h"
#include "transport/support/datagram_stranger.h"
#include "transport/support/host.h"

namespace verbena::transport {
namespace {

using namespace protocol::datagram;

TEST(DatagramStranger, DatagramsOfAnyLengthToAnyQueuePair) {
  constexpr uint32_t kMostBytes = 4096;  // the largest MTU there is
  Host host{Settings{}};
  const Nic& nic = host.nic();
  const auto engine = take(datagram::Engine::find(nic, {}, false), "an engine");
  DatagramStranger stranger(nic, 1, kMostBytes);
  std::ranges::fill(stranger.memory(), 0x5A);

  const EngineRail rail = engine->rails()[0]->describe();
  std::vector<uint32_t> pairs{rail.control, rail.eager};
  pairs.insert(pairs.end(), rail.granted.begin(), rail.granted.end());
  for (const uint32_t number : pairs) {
    for (const uint32_t bytes : {1U, 24U, 25U, 63U, 640U, 641U, 664U, 665U, 2048U, kMostBytes}) {
      for (uint32_t kind = 0; kind < 8; ++kind) {
        const Immediate immediate{.kind = static_cast<PacketKind>(kind)};
        const verbs::Datagram datagram =
            stranger.make(number, engine->name().queue_key, immediate.encode(), 0, bytes);
        ASSERT_TRUE(stranger.send({&datagram, 1}));
      }
      const datagram::EngineGuard guard(*engine, datagram::EngineGuard::Waits{});
      for (int i = 0; i < 3; ++i) engine->pass();
      ASSERT_TRUE(engine->failure()) << bytes << " bytes";
    }
  }
}

TEST(DatagramChannels, OnceAllAreOpenNoOtherIs) {
  Host host{Settings{{"VERBENA_BOUNCE_BYTES", "8m"}}};
  const auto engine = take(datagram::Engine::find(host.nic(), {}, false), "an engine");
  protocol::datagram::DatagramHandle handle{};
  const auto listener = take(datagram::Listener::open(engine, &handle), "a listener");
  const auto connector = take(datagram::Connector::start(engine, handle), "a connector");
  uint32_t peer = 0, first = 0;
  {
    const datagram::EngineGuard guard(*engine, datagram::EngineGuard::Waits{});
    peer = engine->take_peer(handle.engine, handle.port, handle.process);
    for (uint32_t i = 0; i < protocol::datagram::kNoChannel; ++i) {
      const uint32_t channel = engine->open_send(peer, engine->choose_wire(peer));
      if (i == 7) first = channel;
    }
  }
  bool is_refused = false;
  ASSERT_TRUE(poll_until([&] {
    const auto end = connector->poll();
    return is_refused = !end;
  }));
  const datagram::EngineGuard guard(*engine, datagram::EngineGuard::Waits{});
  engine->close_send(first);
  EXPECT_EQ(engine->choose_wire(peer), 7);
}

}  // namespace
}  // namespace verbena::transport
