// Whoever knows an engine's queue pairs and their key can send them anything: nothing of it stops the engine.
#include <gtest/gtest.h>

#include <vector>

#include "transport/datagram/engine.h"
#include "transport/support/connection.h"
#include "transport/support/host.h"

namespace verbena::transport {
namespace {

using namespace protocol::datagram;

TEST(DatagramStranger, DatagramsOfAnyLengthToAnyQueuePair) {
  constexpr uint32_t kMostBytes = 4096;  // the largest MTU there is
  constexpr uint32_t kDepth = 16;
  Host host{Settings{}};
  const Nic& nic = host.nic();
  verbs::Device& device = *nic.rails[0];
  const auto engine = take(datagram::Engine::find(nic, {}, false), "an engine");
  auto sends = take(verbs::CompletionQueue::create(device, kDepth), "a queue");
  auto receives = take(verbs::CompletionQueue::create(device, 16), "a queue");
  auto none = take(verbs::SharedReceiveQueue::create(device, 16), "a queue");
  auto pair =
      take(verbs::DatagramPair::create(device, sends, receives, none, {.send_depth = kDepth}), "a pair");
  const auto way =
      take(verbs::AddressHandle::create(device, device.local_address(), device.address(), -1, 1), "a way");
  std::vector<uint8_t> memory(kMostBytes, 0x5A);
  const auto region =
      take(verbs::MemoryRegion::register_memory(device, memory.data(), memory.size(), {}), "a region");

  const EngineRail rail = engine->rails()[0]->describe();
  std::vector<uint32_t> pairs{rail.control, rail.eager};
  pairs.insert(pairs.end(), rail.granted.begin(), rail.granted.end());
  for (const uint32_t number : pairs) {
    for (const uint32_t bytes : {1U, 24U, 25U, 63U, 640U, 641U, 664U, 665U, 2048U, kMostBytes}) {
      for (uint32_t kind = 0; kind < 8; ++kind) {
        const Immediate immediate{.kind = static_cast<PacketKind>(kind)};
        const verbs::Datagram datagram{.way = way.get(),
                                       .pair_number = number,
                                       .key = engine->name().queue_key,
                                       .imm = immediate.encode(),
                                       .header_length = bytes,
                                       .header = memory.data(),
                                       .header_key = region.local_key()};
        ASSERT_TRUE(pair.post({&datagram, 1}));
        ASSERT_TRUE(poll_until([&] {
          verbs::Completion completions[verbs::CompletionQueue::kMaxPollEntries];
          for (int i = 0, count = sends.poll(completions); i < count; ++i) pair.retire(completions[i].cookie);
          return pair.free_slots() == kDepth;
        }));
      }
      const datagram::EngineGuard guard(*engine, datagram::EngineGuard::Waits{});
      for (int i = 0; i < 3; ++i) engine->pass();
      ASSERT_TRUE(engine->failure()) << bytes << " bytes";
    }
  }
}

}  // namespace
}  // namespace verbena::transport
