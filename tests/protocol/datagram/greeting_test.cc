// What comes from outside before two engines know each other: every byte of a handle counts, and no greeting,
// however long or wrong, is read beyond its end.
#include "protocol/datagram/greeting.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace verbena::protocol::datagram {
namespace {

EngineName make_name(uint8_t rails) {
  return {.id = 7,
          .secret = {1, 2, 3},
          .queue_key = 0x1234,
          .data_lines = 31,
          .rails = rails,
          .is_keyed = 0,
          .has_short_pages = 1,
          .reserved = 0};
}

DatagramHandle make_handle() {
  DatagramHandle handle{};
  handle.nonce = 99;
  handle.engine = make_name(2);
  seal_handle(handle);
  return handle;
}

// As it is sent.
std::vector<uint8_t> make_bytes(uint8_t rails) {
  Greeting greeting{};
  greeting.version = kDatagramVersion;
  greeting.slot = 3;
  greeting.channel = 5;
  greeting.nonce = 99;
  greeting.other_id = 8;
  greeting.engine = make_name(rails);
  for (uint32_t i = 0; i < rails; ++i) greeting.rail[i].control = 100 + i;
  std::vector<uint8_t> bytes(greeting.covered_bytes() + kGreetingMacBytes, 0xAB);
  std::memcpy(bytes.data(), &greeting, greeting.covered_bytes());
  return bytes;
}

TEST(GreetingTest, EveryByteOfAHandleCounts) {
  const DatagramHandle handle = make_handle();
  EXPECT_EQ(check_handle(handle), HandshakeError::kNone);
  EXPECT_TRUE(is_datagram_handle(&handle));
  for (size_t i = 0; i < sizeof(handle); ++i) {
    DatagramHandle changed = handle;
    reinterpret_cast<uint8_t*>(&changed)[i] ^= 0x10;
    EXPECT_NE(check_handle(changed), HandshakeError::kNone) << i;
  }
  Handle connected{};
  seal_handle(connected, 1);
  EXPECT_FALSE(is_datagram_handle(&connected));
}

// Whatever else differs in it.
TEST(GreetingTest, AHandleOfAnotherVersionIsNamed) {
  for (const int version : {0, kDatagramVersion - 1, kDatagramVersion + 1}) {
    DatagramHandle handle = make_handle();
    handle.version = static_cast<uint16_t>(version);
    handle.engine.data_lines = UINT16_MAX;
    EXPECT_EQ(check_handle(handle), HandshakeError::kVersion) << version;
  }
}

TEST(GreetingTest, IsReadAsItWasSent) {
  for (uint8_t rails = 1; rails <= kMaxEngineRails; ++rails) {
    const auto greeting = read_greeting(make_bytes(rails));
    ASSERT_TRUE(greeting) << +rails;
    EXPECT_EQ(greeting->engine.rails, rails);
    EXPECT_EQ(greeting->channel, 5);
    EXPECT_EQ(greeting->rail[rails - 1].control, 99U + rails);
    EXPECT_EQ(greeting->mac[0], 0xAB);
  }
}

TEST(GreetingTest, ALengthThatDoesNotFitIsRefused) {
  const std::vector<uint8_t> bytes = make_bytes(3);
  for (size_t length = 0; length < bytes.size(); ++length) {
    // Of its own, so that a sanitizer sees what is read behind it.
    const std::vector<uint8_t> shorter(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(length));
    EXPECT_FALSE(read_greeting(shorter)) << length;
  }
  std::vector<uint8_t> longer = bytes;
  longer.push_back(0);
  EXPECT_FALSE(read_greeting(longer));
}

TEST(GreetingTest, NamesThatMakeNoSenseAreRefused) {
  const auto refuses = [](auto&& change) {
    std::vector<uint8_t> bytes = make_bytes(1);
    Greeting greeting{};
    std::memcpy(&greeting, bytes.data(), Greeting::kFixedBytes);
    change(greeting);
    std::memcpy(bytes.data(), &greeting, Greeting::kFixedBytes);
    return !read_greeting(bytes).has_value();
  };
  EXPECT_FALSE(refuses([](Greeting&) {}));
  EXPECT_TRUE(refuses([](Greeting& greeting) { greeting.version = 1; }));
  EXPECT_TRUE(refuses([](Greeting& greeting) { greeting.engine.id = 0; }));
  EXPECT_TRUE(refuses([](Greeting& greeting) { greeting.engine.rails = 0; }));
  EXPECT_TRUE(refuses([](Greeting& greeting) { greeting.engine.rails = 9; }));
  EXPECT_TRUE(refuses([](Greeting& greeting) { greeting.engine.data_lines = 1025; }));
  EXPECT_TRUE(refuses([](Greeting& greeting) { greeting.engine.data_lines = 0; }));
  EXPECT_TRUE(refuses([](Greeting& greeting) { greeting.engine.queue_key = 1U << 31; }));
  EXPECT_TRUE(refuses([](Greeting& greeting) { greeting.engine.reserved = 1; }));
  EXPECT_TRUE(refuses([](Greeting& greeting) { greeting.slot = kStrangerSlot; }));
  EXPECT_TRUE(refuses([](Greeting& greeting) { greeting.channel = kNoChannel; }));
}

TEST(GreetingTest, AnyBytesAreHarmless) {
  std::mt19937 random{5};
  for (int round = 0; round < 100'000; ++round) {
    std::vector<uint8_t> bytes = round % 2 == 0 ? make_bytes(static_cast<uint8_t>(1 + random() % 8))
                                                : std::vector<uint8_t>(random() % 700);
    for (uint32_t changes = random() % 8; changes != 0 && !bytes.empty(); --changes)
      bytes[random() % bytes.size()] = static_cast<uint8_t>(random());
    if (const auto greeting = read_greeting(bytes)) {
      EXPECT_LE(greeting->engine.rails, kMaxEngineRails);
      EXPECT_EQ(bytes.size(), greeting->covered_bytes() + kGreetingMacBytes);
    }
  }
}

}  // namespace
}  // namespace verbena::protocol::datagram
