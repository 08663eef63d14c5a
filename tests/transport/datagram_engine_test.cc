// What an engine costs those who share it: callers that find it taken, peers beyond the first few hundred.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <bit>
#include <thread>
#include <vector>

#include "transport/datagram/engine.h"
#include "transport/datagram/meeting.h"
#include "transport/datagram/peer.h"
#include "transport/support/connection.h"
#include "transport/support/host.h"

namespace {

thread_local std::atomic<uint64_t>* yields = nullptr;
thread_local std::atomic<uint64_t>* naps = nullptr;

// Who looks whether a process is there, and with whose token.
std::atomic<verbena::transport::datagram::Engine*> watched{nullptr};
std::atomic<uint64_t> looks{0};
thread_local bool is_caller = false;
std::atomic<uint64_t> looks_of_callers{0};

void count(std::atomic<uint64_t>* counter) {
  if (counter != nullptr) counter->fetch_add(1);
}

}  // namespace

// Of the whole program, instead of libc's.
extern "C" int kill(pid_t pid, int signal) noexcept {
  using verbena::transport::datagram::EngineGuard;
  if (auto* const engine = watched.load(); signal == 0 && engine != nullptr) {
    ++looks;
    if (is_caller)
      ++looks_of_callers;
    else
      EngineGuard(*engine, EngineGuard::Waits{});  // for ever if this thread has it
  }
  return static_cast<int>(syscall(SYS_kill, pid, signal));
}
extern "C" int sched_yield() noexcept {
  count(yields);
  return static_cast<int>(syscall(SYS_sched_yield));
}
extern "C" int nanosleep(const timespec* time, timespec* left) {
  count(naps);
  return static_cast<int>(syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, time, left));
}

namespace verbena::transport {
namespace {

using datagram::Engine;
using datagram::EngineGuard;

class DatagramEngineTest : public testing::Test {
 protected:
  ~DatagramEngineTest() override {
    yields = naps = nullptr;
    watched = nullptr;
  }

  Host host_{Settings{{"VERBENA_BOUNCE_BYTES", "8m"}, {"SOFTVERBS_DEVICES", "2"}}};
  const std::shared_ptr<Engine> engine_ = take(Engine::find(host_.nic(), {}, false), "an engine");
};

// Else whoever has the engine may never have a processor: NCCL's proxy yields, other callers need not.
TEST_F(DatagramEngineTest, CallersThatAreRefusedGiveWay) {
  constexpr uint64_t kCalls = 1'000;
  std::atomic<uint64_t> count{0};
  const EngineGuard holder(*engine_, EngineGuard::Waits{});
  yields = &count;
  for (uint64_t i = 0; i < kCalls; ++i) {
    const EngineGuard refused(*engine_);
    ASSERT_FALSE(refused);
  }
  EXPECT_GE(count, kCalls / 100);
  EXPECT_LE(count, kCalls / 10) << "a call that is refused once loses nothing";
}

TEST_F(DatagramEngineTest, WhoeverHasToHaveItDoesNotSpin) {
  constexpr uint64_t kManyYields = 100'000;
  std::atomic<uint64_t> count_yields{0}, count_naps{0};
  std::thread waiting;
  {
    const EngineGuard holder(*engine_, EngineGuard::Waits{});
    waiting = std::thread([&] {
      yields = &count_yields;
      naps = &count_naps;
      const EngineGuard guard(*engine_, EngineGuard::Waits{});
      EXPECT_TRUE(guard);
      yields = naps = nullptr;
    });
    while (count_naps < 3 && count_yields < kManyYields) std::this_thread::yield();
  }
  waiting.join();
  EXPECT_GE(count_naps, 3U);
  EXPECT_LT(count_yields, kManyYields);
}

// The kernel may take its time, and nobody who has the engine waits for it.
TEST_F(DatagramEngineTest, ProcessesAreLookedAtWithoutTheEngine) {
  const auto other = take(Engine::find(host_.nic(1, 1), {}, false), "another engine");
  protocol::datagram::DatagramHandle handle{};
  const auto listener = take(datagram::Listener::open(other, &handle), "a listener");
  handle.process.start_ticks = 1;  // of one that had this process's number before
  handle.control = 0xFFFFFF;       // nobody answers
  protocol::datagram::seal_handle(handle);
  is_caller = true;
  watched = engine_.get();
  const auto connector = take(datagram::Connector::start(engine_, handle), "a connector");
  EXPECT_TRUE(poll_until([&] { return !connector->poll(); }));
  EXPECT_GT(looks, 0U);
  EXPECT_EQ(looks_of_callers, 0U);
}

TEST_F(DatagramEngineTest, ChannelsToAPeerRunOut) {
  const auto other = take(Engine::find(host_.nic(1, 1), {}, false), "another engine");
  const EngineGuard guard(*engine_, EngineGuard::Waits{});
  const uint32_t peer = engine_->take_peer(other->name(), other->rails()[0]->describe().port, {});
  std::vector<uint32_t> channels;
  for (uint32_t i = 0; i < protocol::datagram::kNoChannel; ++i) {
    const uint16_t wire = engine_->choose_wire(peer);
    ASSERT_EQ(wire, i);
    channels.push_back(engine_->core().open_send(peer, wire));
  }
  EXPECT_EQ(engine_->choose_wire(peer), protocol::datagram::kNoChannel);
  engine_->core().close_send(channels[1'000]);
  EXPECT_EQ(engine_->choose_wire(peer), 1'000);
  for (const uint32_t channel : channels)
    if (channel != channels[1'000]) engine_->core().close_send(channel);
}

// A peer behind one flow label for each pair of rails has as many paths: that one is lost says something of
// all packets that take it.
TEST_F(DatagramEngineTest, APathIsAWayOfItsOwn) {
  const std::vector<protocol::datagram::EngineRail> peer{engine_->rails()[0]->describe()};
  for (const bool has_many : {false, true}) {
    datagram::Ways ways;
    ASSERT_TRUE(
        *datagram::make_ways(engine_->rails(), engine_->name(), engine_->name(), peer, has_many, &ways));
    EXPECT_EQ(static_cast<size_t>(std::popcount(ways.paths)), ways.handles.size()) << has_many;
    EXPECT_EQ(ways.handles.size() < protocol::datagram::kPaths, has_many);
    EXPECT_EQ(ways.reachable, ~0U) << "the peer sends over all of them";
    for (uint32_t path = 0; path < protocol::datagram::kPaths; ++path) EXPECT_NE(ways.find(path), nullptr);
  }
}

TEST_F(DatagramEngineTest, PeersOfOnePathTakeAllQueuePairs) {
  const std::vector<protocol::datagram::EngineRail> peer{engine_->rails()[0]->describe()};
  datagram::Ways ways;
  ASSERT_TRUE(*datagram::make_ways(engine_->rails(), engine_->name(), engine_->name(), peer, true, &ways));
  const auto rails = static_cast<uint32_t>(engine_->rails().size());
  uint32_t pairs = 0;
  for (uint32_t id = 0; id < engine_->name().granted_pairs(); ++id)
    for (uint32_t path = 0; path < protocol::datagram::kPaths; ++path)
      if ((ways.paths >> path & 1) != 0)
        pairs |= 1U << datagram::choose_granted_pair(id, path, rails, engine_->name());
  EXPECT_EQ(pairs, (1U << engine_->name().granted_pairs()) - 1);
}

}  // namespace
}  // namespace verbena::transport
