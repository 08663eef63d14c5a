// Whoever knows an engine's queue pairs and their key can send them anything: nothing of it stops the engine.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <memory>
#include <vector>

#include "transport/datagram/engine.h"
#include "transport/datagram/greeting_keys.h"
#include "transport/datagram/meeting.h"
#include "transport/support/connection.h"
#include "transport/support/datagram_stranger.h"
#include "transport/support/host.h"

namespace verbena::transport {
namespace {

using namespace protocol::datagram;

// What an engine that knows this one's handle sends to open a channel.
Greeting make_hello(const Nic& nic, const datagram::Engine& engine, uint64_t nonce, uint16_t channel,
                    uint8_t secret) {
  Greeting hello{};
  hello.version = kDatagramVersion;
  hello.channel = channel;
  hello.nonce = nonce;
  hello.other_id = engine.name().id;
  hello.engine.secret.fill(secret);
  hello.engine.queue_key = 1;
  hello.engine.data_lines = engine.name().data_lines;
  hello.engine.rails = 1;
  hello.engine.id = take(datagram::make_engine_id(hello.engine), "an id");
  hello.rail[0].port = std::bit_cast<protocol::RailRecord>(nic.rails[0]->address());
  return hello;
}

void say(DatagramStranger& stranger, const datagram::Engine& engine, const Greeting& hello,
         PacketKind kind = PacketKind::kHello) {
  uint8_t* const packet = stranger.memory().data();
  std::memset(packet, 0, sizeof(PacketHeader));
  std::memcpy(packet + sizeof(PacketHeader), &hello, hello.covered_bytes());
  const std::span<const uint8_t> covered(packet, sizeof(PacketHeader) + hello.covered_bytes());
  const auto mac = take(datagram::make_greeting_mac(engine.name().secret, kind, covered), "MAC");
  std::memcpy(packet + covered.size(), mac.data(), mac.size());
  const Immediate immediate{.slot = kStrangerSlot, .kind = kind};
  const verbs::Datagram datagram =
      stranger.make(engine.rails()[0]->describe().control, engine.name().queue_key, immediate.encode(), 0,
                    static_cast<uint32_t>(covered.size() + mac.size()));
  ASSERT_TRUE(stranger.send({&datagram, 1}));
}

TEST(DatagramStranger, DatagramsOfAnyLengthToAnyQueuePair) {
  constexpr uint32_t kMostBytes = 4096;  // the largest MTU there is
  auto [host, nic] = OwnNic();
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
      const uint32_t channel = engine->core().open_send(peer, engine->choose_wire(peer));
      if (i == 7) first = channel;
    }
  }
  bool is_refused = false;
  ASSERT_TRUE(poll_until([&] {
    const auto end = connector->poll();
    return is_refused = !end;
  }));
  const datagram::EngineGuard guard(*engine, datagram::EngineGuard::Waits{});
  engine->core().close_send(first);
  EXPECT_EQ(engine->choose_wire(peer), 7);
}

TEST(DatagramStranger, AHandleThatPosesAsAnotherEngineIsRefused) {
  Host host{Settings{{"VERBENA_BOUNCE_BYTES", "8m"}}};
  const auto engine = take(datagram::Engine::find(host.nic(), {}, false), "an engine");
  protocol::datagram::DatagramHandle handle{};
  const auto listener = take(datagram::Listener::open(engine, &handle), "a listener");
  EXPECT_TRUE(datagram::Connector::start(engine, handle));
  handle.engine.secret[0] ^= 1;
  seal_handle(handle);
  EXPECT_EQ(datagram::Connector::start(engine, handle).error().status, base::Status::kRemote);
}

// It would have the number of the other one's next channel, whose accept then fails.
TEST(DatagramStranger, AnEngineThatPosesAsAnotherIsNotHeard) {
  constexpr uint8_t kSecret = 7;
  auto [host, nic] = OwnNic();
  const auto engine = take(datagram::Engine::find(nic, {}, false), "an engine");
  DatagramStranger stranger(nic, 1, kMaxGreetingBytes);
  std::vector<std::unique_ptr<datagram::ReceiveEnd>> ends;
  for (uint16_t channel = 0; channel < 2; ++channel) {
    DatagramHandle handle{};
    const auto listener = take(datagram::Listener::open(engine, &handle), "a listener");
    const Greeting hello = make_hello(nic, *engine, handle.nonce, channel, kSecret);
    Greeting posing = make_hello(nic, *engine, handle.nonce, channel, kSecret + 1);
    posing.engine.id = hello.engine.id;
    say(stranger, *engine, posing);  // before and after the other one has been met
    for (int i = 0; i < 3; ++i) ASSERT_EQ(take(listener->poll(false, 0), "a caller"), nullptr);
    say(stranger, *engine, hello);
    ASSERT_TRUE(poll_until([&] {
      auto end = take(listener->poll(false, 0), "a caller");
      if (end == nullptr) return false;
      ends.push_back(std::move(end));
      return true;
    }));
  }
}

// An engine that is met, and that can say what it likes.
class HostileTest : public testing::Test {
 protected:
  struct Hostile {
    uint32_t id;
    TagKeys keys;
    ProcessName process;
    std::unique_ptr<datagram::ReceiveEnd> end;
  };

  Hostile meet(uint8_t secret, const ProcessName& process) {
    DatagramHandle handle{};
    const auto listener = take(datagram::Listener::open(engine_, &handle), "a listener");
    Greeting hello = make_hello(host_.nic(), *engine_, handle.nonce, 0, secret);
    hello.process = process;
    hello.slot = 1;
    say(stranger_, *engine_, hello);
    Hostile met{met_++, take(datagram::make_tag_keys(hello.engine, engine_->name()), "keys"), process,
                nullptr};
    EXPECT_TRUE(poll_until([&] {
      met.end = take(listener->poll(false, 0), "a caller");
      return met.end != nullptr;
    }));
    return met;
  }
  void send(const Hostile& from, PacketKind kind, std::span<const uint8_t> body) {
    uint8_t* const packet = stranger_.memory().data();
    PacketHeader header{};
    header.channel = kNoChannel;
    const Immediate immediate{.slot = static_cast<uint16_t>(from.id), .kind = kind};
    header.tag = make_tag(from.keys, header, immediate, body);
    std::memcpy(packet, &header, sizeof(header));
    std::ranges::copy(body, packet + sizeof(header));
    const verbs::Datagram datagram =
        stranger_.make(engine_->rails()[0]->describe().control, engine_->name().queue_key, immediate.encode(),
                       0, static_cast<uint32_t>(sizeof(header) + body.size()));
    ASSERT_TRUE(stranger_.send({&datagram, 1}));
  }
  void say_that_it_has_ended(const Hostile& witness, const Hostile& of) {
    const LifeRecord record{of.process, 0, 0};
    send(witness, PacketKind::kReset, {reinterpret_cast<const uint8_t*>(&record), sizeof(record)});
  }
  // After the engine has taken what there is.
  bool is_given_up(const Hostile& peer) {
    const datagram::EngineGuard guard(*engine_, datagram::EngineGuard::Waits{});
    for (int i = 0; i < 3; ++i) engine_->pass();
    return engine_->failure_of(peer.id).has_failed();
  }
  bool is_doubted(const Hostile& peer) {
    const datagram::EngineGuard guard(*engine_, datagram::EngineGuard::Waits{});
    engine_->pass();
    return engine_->peer_of(peer.id).doubted_ns != 0;
  }

  Host host_{Settings{{"VERBENA_BOUNCE_BYTES", "8m"}}};
  const std::shared_ptr<datagram::Engine> engine_ =
      take(datagram::Engine::find(host_.nic(), {}, false), "an engine");
  DatagramStranger stranger_{host_.nic(), 1, kMaxGreetingBytes};
  uint32_t met_ = 0;
};

TEST_F(HostileTest, APeerEndsNoOtherByItsWord) {
  const Hostile peer = meet(2, {.space = 77, .start_ticks = 1, .pid = 5, .reserved = 0}),
                neighbour = meet(3, {.space = 77, .start_ticks = 1, .pid = 6, .reserved = 0}),
                other = meet(4, {.space = 78, .start_ticks = 1, .pid = 7, .reserved = 0});
  say_that_it_has_ended(other, peer);
  EXPECT_FALSE(is_given_up(peer));
  EXPECT_FALSE(is_doubted(peer)) << "of another host";
  {
    // With the engine's token: it does not look again before this thread has answered.
    const datagram::EngineGuard guard(*engine_, datagram::EngineGuard::Waits{});
    say_that_it_has_ended(neighbour, peer);
    const auto is_doubted_now = [&] {
      engine_->pass();
      return engine_->peer_of(peer.id).doubted_ns != 0;
    };
    ASSERT_TRUE(poll_until(is_doubted_now));
    EXPECT_FALSE(engine_->failure_of(peer.id).has_failed()) << "it may answer";
    ASSERT_TRUE(poll_until([&] {
      send(peer, PacketKind::kRequest, {});
      return !is_doubted_now();
    })) << "it has answered";
    EXPECT_FALSE(engine_->failure_of(peer.id).has_failed());
  }
  say_that_it_has_ended(neighbour, peer);
  ASSERT_TRUE(poll_until([&] { return is_given_up(peer); })) << "it does not answer";
  EXPECT_FALSE(is_given_up(neighbour));
}

// A peer that this end only calls yet: it answers no questions, but a welcome of it says that it is there.
TEST_F(HostileTest, APeerEndsNobodyWhoIsCalledByItsWord) {
  const Hostile neighbour = meet(3, {.space = 77, .start_ticks = 1, .pid = 6, .reserved = 0});
  Greeting greeting = make_hello(host_.nic(), *engine_, 1, 0, 2);
  greeting.process = {.space = 77, .start_ticks = 1, .pid = 5, .reserved = 0};
  greeting.slot = 1;
  const auto call = [&] {
    const datagram::EngineGuard guard(*engine_, datagram::EngineGuard::Waits{});
    return engine_->take_peer(greeting.engine, greeting.rail[0].port, greeting.process);
  };
  const Hostile called{call(), {}, greeting.process, nullptr};
  say_that_it_has_ended(neighbour, called);
  ASSERT_TRUE(poll_until([&] { return is_doubted(called) || is_given_up(called); }));
  ASSERT_TRUE(poll_until([&] {
    say(stranger_, *engine_, greeting, PacketKind::kWelcome);
    return !is_doubted(called);
  }));
  EXPECT_FALSE(is_given_up(called));
  for (int i = 0; i < 2; ++i) {
    say_that_it_has_ended(neighbour, called);
    ASSERT_TRUE(poll_until([&] { return is_given_up(called); })) << "nothing is heard of it";
    EXPECT_EQ(call(), called.id) << "who calls it again takes no other number";
    EXPECT_FALSE(is_given_up(called));
  }
}

}  // namespace
}  // namespace verbena::transport
