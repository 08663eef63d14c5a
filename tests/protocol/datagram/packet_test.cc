#include "protocol/datagram/packet.h"

#include <gtest/gtest.h>

#include <set>

#include "protocol/random.h"

namespace verbena::protocol::datagram {
namespace {

TEST(DatagramPacket, EveryImmediateIsReadAsItWasWritten) {
  Random random(1);
  for (int i = 0; i < 100'000; ++i) {
    const auto bits = static_cast<uint32_t>(random.next());
    EXPECT_EQ(Immediate::decode(bits).encode(), bits);
  }
  const Immediate immediate{.slot = 0x1234,
                            .path = 31,
                            .is_last = true,
                            .asks = false,
                            .is_resent = true,
                            .kind = PacketKind::kClose,
                            .generation = 17};
  const Immediate again = Immediate::decode(immediate.encode());
  EXPECT_EQ(again.slot, 0x1234);
  EXPECT_EQ(again.path, 31);
  EXPECT_TRUE(again.is_last);
  EXPECT_FALSE(again.asks);
  EXPECT_TRUE(again.is_resent);
  EXPECT_EQ(again.kind, PacketKind::kClose);
  EXPECT_EQ(again.generation, 17);
}

TEST(DatagramPacket, PlacesReachToTheirLimits) {
  const Place place{kMessageNumbers - 1, kMaxPacketIndex - 1};
  EXPECT_EQ(Place::decode(place.encode()).message, kMessageNumbers - 1);
  EXPECT_EQ(Place::decode(place.encode()).index, kMaxPacketIndex - 1);
}

// Each bit of what it covers changes the tag, and so does each bit of the keys.
TEST(DatagramPacket, ATagCoversEveryBitOfTheHeader) {
  const TagKeys keys{0x0123456789ABCDEF, 0xFEDCBA9876543210};
  const PacketHeader header{0, 7, 9, 3, 1, 12345};
  const Immediate immediate{.slot = 1, .is_last = true, .kind = PacketKind::kGranted};
  std::set<uint64_t> tags{make_tag(keys, header, immediate)};
  const auto expect_new = [&](uint64_t tag, const char* what, size_t bit) {
    EXPECT_TRUE(tags.insert(tag).second) << what << " bit " << bit;
  };
  for (size_t bit = 64; bit < 8 * sizeof(header); ++bit) {
    PacketHeader other = header;
    reinterpret_cast<uint8_t*>(&other)[bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
    expect_new(make_tag(keys, other, immediate), "header", bit);
  }
  tags = {make_tag(keys, header, immediate)};
  for (size_t bit = 0; bit < 64; ++bit) {
    expect_new(make_tag({keys.first ^ uint64_t{1} << bit, keys.second}, header, immediate), "first key", bit);
    expect_new(make_tag({keys.first, keys.second ^ uint64_t{1} << bit}, header, immediate), "second key",
               bit);
  }
  Immediate other = immediate;
  other.is_last = false;
  expect_new(make_tag(keys, header, other), "last", 0);
  for (uint32_t kind = 1; kind < 8; ++kind) {
    other = immediate;
    other.kind = static_cast<PacketKind>(kind);
    expect_new(make_tag(keys, header, other), "kind", kind);
  }
  other = immediate;
  other.path = 5, other.asks = true, other.is_resent = true;
  EXPECT_EQ(make_tag(keys, header, other), make_tag(keys, header, immediate)) << "hints are not covered";
}

TEST(DatagramPacket, ATagCoversEveryBitAndTheLengthOfABody) {
  const TagKeys keys{3, 5};
  const PacketHeader header{0, 7, 9, 3, 1, 12345};
  const Immediate immediate{.slot = 1, .kind = PacketKind::kAck};
  std::array<uint8_t, 61> body{};
  std::set<uint64_t> tags;
  for (size_t length = 0; length <= body.size(); ++length)
    EXPECT_TRUE(tags.insert(make_tag(keys, header, immediate, {body.data(), length})).second)
        << "length " << length;
  for (size_t bit = 0; bit < 8 * body.size(); ++bit) {
    body[bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
    EXPECT_TRUE(tags.insert(make_tag(keys, header, immediate, body)).second) << "bit " << bit;
    body[bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
  }
}

}  // namespace
}  // namespace verbena::protocol::datagram
