// What a peer of datagrams costs: one engine, and 10,000 others that a second process makes up, each with a
// name, secrets and a channel of its own, behind one queue pair. Memory and queue pairs are asserted, times
// are told.
#include <gtest/gtest.h>
#include <malloc.h>

#include <bit>
#include <cstdio>
#include <cstring>
#include <vector>

#include "base/clock.h"
#include "transport/datagram/engine.h"
#include "transport/datagram/greeting_keys.h"
#include "transport/datagram/meeting.h"
#include "transport/support/connection.h"
#include "transport/support/datagram_stranger.h"
#include "transport/support/host.h"
#include "transport/support/memory_use.h"
#include "transport/support/processes.h"

namespace verbena::transport {
namespace {

using namespace protocol::datagram;

constexpr uint32_t kPeers = 10'000;
constexpr uint32_t kWave = 250;  // hellos at a time: fewer than an engine has buffers for
constexpr double kKiB = 1024, kMiB = kKiB * kKiB;
constexpr double kMaxMemory = 64 * kMiB;  // of all peers, with a channel each and NCCL's end of it
constexpr uint32_t kMaxPairs = 16;        // of a rail

// What the crowd has to know of the engine.
struct Whereabouts {
  EngineName name;
  uint32_t control;
};

// One real queue pair that is everybody's.
class Crowd {
 public:
  Crowd(const Nic& nic, const Whereabouts& engine)
      : nic_(nic), engine_(engine), sender_(nic, kWave, size_t{kPeers} * kPacketBytes) {}

  // Each with the nonce of a listener.
  void prepare(const std::vector<uint64_t>& nonces) {
    for (uint32_t i = 0; i < kPeers; ++i) {
      Greeting greeting{};
      greeting.version = kDatagramVersion;
      greeting.nonce = nonces[i];
      greeting.other_id = engine_.name.id;
      std::memcpy(greeting.engine.secret.data(), &i, sizeof(i));
      greeting.engine.queue_key = 1;
      greeting.engine.data_lines = engine_.name.data_lines;
      greeting.engine.rails = 1;
      greeting.engine.id = take(datagram::make_engine_id(greeting.engine), "an id");
      greeting.rail[0] = {std::bit_cast<protocol::RailRecord>(nic_.rails[0]->address()),
                          sender_.number(),
                          sender_.number(),
                          {}};
      uint8_t* const packet = sender_.memory().data() + size_t{i} * kPacketBytes;
      std::memcpy(packet + sizeof(PacketHeader), &greeting, greeting.covered_bytes());
      const std::span<const uint8_t> covered(packet, sizeof(PacketHeader) + greeting.covered_bytes());
      const auto mac =
          take(datagram::make_greeting_mac(engine_.name.secret, PacketKind::kHello, covered), "a MAC");
      std::memcpy(packet + covered.size(), mac.data(), mac.size());
      length_bytes_ = static_cast<uint32_t>(covered.size() + mac.size());
    }
  }
  void say_hello(uint32_t first) {
    std::vector<verbs::Datagram> hellos(kWave);
    for (uint32_t i = 0; i < kWave; ++i) {
      const Immediate immediate{.slot = kStrangerSlot, .kind = PacketKind::kHello};
      hellos[i] = sender_.make(engine_.control, engine_.name.queue_key, immediate.encode(),
                               size_t{first + i} * kPacketBytes, length_bytes_);
    }
    ASSERT_TRUE(sender_.send(hellos));
  }

 private:
  static constexpr size_t kPacketBytes = 256;

  const Nic& nic_;
  const Whereabouts engine_;
  DatagramStranger sender_;
  uint32_t length_bytes_ = 0;
};

void be_crowd(Channel& channel) {
  Host host{Settings{}};
  Crowd crowd(host.nic(), channel.hear<Whereabouts>());
  std::vector<uint64_t> nonces(kPeers);
  for (uint64_t& nonce : nonces) nonce = channel.hear<uint64_t>();
  crowd.prepare(nonces);
  for (uint32_t first = 0; first < kPeers; first += kWave) {
    channel.meet();
    crowd.say_hello(first);
  }
  channel.meet();
}

double to_mib(uint64_t bytes, uint64_t before) {
  return (static_cast<double>(bytes) - static_cast<double>(before)) / kMiB;
}

void be_engine(Channel& channel) {
  auto [host, nic] = OwnNic(1, {{"VERBENA_BOUNCE_BYTES", "8m"}});
  const uint64_t begin_bytes = measure_memory().total_bytes();
  const auto engine = take(datagram::Engine::find(nic, {}, false), "an engine");
  const uint64_t before_bytes = measure_memory().total_bytes();
  const EngineRail rail = engine->rails()[0]->describe();
  channel.tell(Whereabouts{engine->name(), rail.control});
  std::vector<std::unique_ptr<datagram::Listener>> listeners;
  for (uint32_t i = 0; i < kPeers; ++i) {
    DatagramHandle handle{};
    listeners.push_back(take(datagram::Listener::open(engine, &handle), "a listener"));
    channel.tell(handle.nonce);
  }
  std::vector<std::unique_ptr<datagram::ReceiveEnd>> ends;
  int64_t waited_ns = 0;
  const int64_t begin_ns = base::monotonic_ns();
  for (uint32_t first = 0; first < kPeers; first += kWave) {
    const int64_t meets_ns = base::monotonic_ns();
    channel.meet();
    waited_ns += base::monotonic_ns() - meets_ns;
    for (uint32_t i = first; i < first + kWave; ++i) {
      ASSERT_TRUE(poll_until([&] {
        auto end = listeners[i]->poll(false, 0);
        if (end && *end != nullptr) ends.push_back(std::move(*end));
        return !end || ends.size() > i;
      }));
      ASSERT_EQ(ends.size(), i + 1);
      listeners[i].reset();
    }
  }
  const int64_t took_ns = base::monotonic_ns() - begin_ns;
  malloc_trim(0);  // of the listeners
  const uint64_t after_bytes = measure_memory().total_bytes();
  ASSERT_EQ(engine->core().peers(), kPeers);
  ends.clear();
  malloc_trim(0);
  const uint64_t known_bytes = measure_memory().total_bytes();
  const auto pairs = static_cast<uint32_t>(2 + rail.granted.size());
  std::printf(
      "%u peers, a channel each: %.1f MiB, %.2f KiB a peer; once NCCL's ends are closed %.2f KiB\n"
      "beside them, whatever their number: %.1f MiB, and pages as they are used; %u queue pairs\n"
      "NCCL's end of a channel: %zu B for receiving, %zu B for sending\n",
      kPeers, to_mib(after_bytes, before_bytes), to_mib(after_bytes, before_bytes) * kKiB / kPeers,
      to_mib(known_bytes, before_bytes) * kKiB / kPeers, to_mib(before_bytes, begin_bytes), pairs,
      sizeof(datagram::ReceiveEnd), sizeof(datagram::SendEnd));
  std::printf("hellos: %.0f a second, of %.3f s in all; %.3f s in waiting for the crowd\n",
              kPeers / (static_cast<double>(took_ns) * 1e-9), static_cast<double>(took_ns) * 1e-9,
              static_cast<double>(waited_ns) * 1e-9);
  EXPECT_LE(to_mib(after_bytes, before_bytes) * kMiB, kMaxMemory);
  EXPECT_LE(pairs, kMaxPairs);
  channel.meet();
}

TEST(DatagramFootprint, TenThousandPeers) {
  run_processes({be_engine}, {be_crowd});
}

}  // namespace
}  // namespace verbena::transport
