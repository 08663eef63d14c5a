// Coded tiles as packets, where packets need notes: words that look like an empty place, or like a note's
// mark, in the same packet of neighbouring tiles.
#include "verbena/device/collectives/coded_packets.cuh"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "device/emulator/world.h"
#include "device/support/random.h"

namespace verbena::device_test {
namespace {

using device::Packet;
using emulator::require;
using emulator::World;

template <typename Codec>
class CodedPacketsTest : public testing::Test {};
using Codecs = testing::Types<device::Float8, device::Int8, device::Int6, device::Int4, device::MxFloat8>;
TYPED_TEST_SUITE(CodedPacketsTest, Codecs);

constexpr uint32_t kTiles = 3;

TYPED_TEST(CodedPacketsTest, NeighbouringTilesHaveNotesOfTheirOwn) {
  using Packets = device::CodedPackets<TypeParam>;
  using Tiles = device::CodedTiles<TypeParam, char, device::Space::kGeneric>;
  constexpr uint32_t kBytes = Packets::kTileBytes;
  constexpr uint32_t kPackets = kTiles * kBytes / Packet::kBytes;
  constexpr uint64_t kEpoch = 5;
  struct alignas(16) Memory {
    char bytes[kTiles * kBytes];
  };
  for (uint64_t seed = 0; seed < 8; ++seed) {
    // What the sender has, what comes, and the slot between them: packets, then a note for each.
    Memory sent{}, received{};
    Random random(seed + 1);
    for (uint64_t at = 0; at < sizeof(sent); at += 4) {
      const uint32_t kind = random.between(0, 3);
      const uint32_t word = kind == 0   ? Packet::kSentinel
                            : kind == 1 ? Packet::kSentinel ^ 1
                                        : random.between(0, UINT32_MAX);
      std::memcpy(sent.bytes + at, &word, 4);
    }
    std::vector<device::Vector16> slot(kPackets + kPackets / 2 + 1);
    char* const begin = reinterpret_cast<char*>(slot.data());
    const Packets packets(kPackets * Packet::kBytes);
    SymmContext context{};
    context.team_size = 2;
    context.timeout_ns = 1'000'000'000;
    World world(seed);
    world.add_grid(0, 1, 32, [&] {
      for (uint32_t tile = 0; tile < kTiles; ++tile)
        packets.send(Tiles(sent.bytes + tile * kBytes, 1).load(0), tile, kEpoch, 1,
                     [&](uint32_t) { return begin; });
    });
    world.add_grid(1, 1, 32, [&] {
      device::Patience patience(context);
      device::pause(200'000);  // all tiles lie there
      for (uint32_t tile = 0; tile < kTiles; ++tile) {
        typename Packets::Polled polled;
        typename TypeParam::Coded coded;
        packets.poll(begin, tile, polled);
        require(packets.receive(begin, tile, kEpoch, 0, polled, patience, coded), "a tile does not come");
        Tiles(received.bytes + tile * kBytes, 1).store(0, coded);
      }
    });
    ASSERT_EQ(world.run(), "") << seed;
    for (uint64_t at = 0; at < sizeof(sent); ++at)
      ASSERT_EQ(received.bytes[at], sent.bytes[at]) << "seed " << seed << ", byte " << at;
  }
}

}  // namespace
}  // namespace verbena::device_test
