// Peers that end, or close all they had on a device: an engine that outlives them keeps nothing of them.
#include <gtest/gtest.h>

#include <memory>

#include "transport/support/datagram_ends.h"
#include "transport/support/processes.h"

namespace verbena::transport {
namespace {

using datagram::Connector;
using datagram::Engine;
using datagram::EngineGuard;
using datagram::Listener;
using datagram::ReceiveEnd;
using datagram::SendEnd;
using protocol::datagram::DatagramHandle;

constexpr uint32_t kRounds = 4;

const Settings kSettings{{"VERBENA_BOUNCE_BYTES", "8m"}, {"VERBENA_CONNECT_TIMEOUT_MS", "600000"}};

std::shared_ptr<Engine> find_engine(Host& host) {
  return take(Engine::find(host.nic(), {}, false), "an engine");
}

struct Accepted {
  std::unique_ptr<Listener> listener;
  std::unique_ptr<ReceiveEnd> end;
};
// Tells the other process where this one listens, and accepts its connection.
Accepted accept(const std::shared_ptr<Engine>& engine, Channel& channel) {
  DatagramHandle handle{};
  Accepted accepted{take(Listener::open(engine, &handle), "a listener"), nullptr};
  channel.tell(handle);
  accepted.end = await_end<ReceiveEnd>([&] { return accepted.listener->poll(false, 0); });
  return accepted;
}

std::unique_ptr<SendEnd> connect(const std::shared_ptr<Engine>& engine, const DatagramHandle& handle) {
  const auto connector = take(Connector::start(engine, handle), "a connector");
  return await_end<SendEnd>([&] { return connector->poll(); });
}

uint32_t count_peers(Engine& engine) {
  const EngineGuard guard(engine, EngineGuard::Waits{});
  return engine.core().peers();
}

// Each engine of the other process is met, used, and gone: with a number that the next one has again.
void stay(Channel& channel) {
  Host host{kSettings};
  const auto engine = find_engine(host);
  Memory memory(host.nic(), kDatagramBytes);
  for (uint32_t round = 0; round < kRounds; ++round) {
    auto [listener, end] = accept(engine, channel);
    ASSERT_NE(end, nullptr);
    EXPECT_EQ(end->peer(), 0U) << "the number of an engine that is gone is not given to another";
    receive(*end, memory);
    end.reset();
    channel.meet();
    EXPECT_TRUE(poll_until([&] { return count_peers(*engine) == 0; })) << "round " << round;
  }
}

void come_and_go(Channel& channel) {
  Host host{kSettings};
  Memory memory(host.nic(), kDatagramBytes);
  for (uint32_t round = 0; round < kRounds; ++round) {
    auto end = connect(find_engine(host), channel.hear<DatagramHandle>());
    ASSERT_NE(end, nullptr);
    send(*end, memory);
    end.reset();
    channel.meet();
  }
}

TEST(DatagramDeparture, AnEngineThatIsClosedIsForgotten) {
  run_processes({stay}, {come_and_go});
}

void outlive(Channel& channel) {
  Host host{kSettings};
  const auto engine = find_engine(host);
  auto [listener, end] = accept(engine, channel);
  ASSERT_NE(end, nullptr);
  channel.meet();
  // An end that is open still refers to it.
  ASSERT_TRUE(poll_until([&] {
    const EngineGuard guard(*engine, EngineGuard::Waits{});
    return engine->peer_of(0).is_dead;
  }));
  EXPECT_EQ(count_peers(*engine), 1U);
  end.reset();
  EXPECT_TRUE(poll_until([&] { return count_peers(*engine) == 0; }));
}

void be_killed(Channel& channel) {
  Host host{kSettings};
  auto end = connect(find_engine(host), channel.hear<DatagramHandle>());
  channel.meet();
  die();
}

TEST(DatagramDeparture, AProcessThatIsKilledIsForgotten) {
  run_processes({outlive}, {be_killed, End::kKilled});
}

// Its process is there, and nobody of it answers any more.
void call_again(Channel& channel) {
  Host host{kSettings};
  const auto engine = find_engine(host);
  const auto handle = channel.hear<DatagramHandle>();
  const auto end = connect(engine, handle);
  ASSERT_NE(end, nullptr);
  channel.meet();
  channel.meet();
  const auto connector = take(Connector::start(engine, handle), "a connector");
  EXPECT_TRUE(poll_until([&] { return !connector->poll(); }, 60'000));
  channel.meet();
}

void close_all(Channel& channel) {
  Host host{kSettings};
  {
    const auto engine = find_engine(host);
    auto [listener, end] = accept(engine, channel);
    channel.meet();
  }
  channel.meet();
  channel.meet();
}

TEST(DatagramDeparture, WhoHasClosedAllIsNotCalledForLong) {
  run_processes({call_again}, {close_all});
}

}  // namespace
}  // namespace verbena::transport
