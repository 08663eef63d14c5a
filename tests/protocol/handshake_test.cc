#include "protocol/handshake.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>
#include <set>
#include <string>

namespace verbena::protocol {
namespace {

constexpr uint64_t kNonce = 0x1122334455667788;

Handle make_handle() {
  Handle handle{};
  handle.address = {4, 40000, 0, {127, 0, 0, 1}};
  handle.rails = 2;
  handle.queue_pairs_per_rail = 1;
  seal_handle(handle, kNonce);
  return handle;
}

Hello make_hello() {
  Hello hello{};
  hello.header = make_header(sizeof(Hello), kNonce);
  hello.rails = 2;
  hello.queue_pairs = 2;
  hello.control_address = 0x7f0000001000;
  return hello;
}

Welcome make_welcome() {
  Welcome welcome{};
  welcome.header = make_header(sizeof(Welcome), kNonce);
  welcome.rails = 2;
  welcome.queue_pairs = 2;
  welcome.joined_pairs = 3;
  welcome.page_bytes = 16384;
  welcome.window[0] = welcome.window[1] = 64;
  welcome.origin[1] = welcome.rail_of[1] = 1;
  welcome.id = 1;
  return welcome;
}

HandshakeError check(const Hello& hello) {
  return check_hello(hello, kNonce, 2, 1);
}
HandshakeError check(const Welcome& welcome) {
  return check_welcome(welcome, kNonce, 2);
}

template <typename Message>
uint8_t* bytes_of(Message& message) {
  return reinterpret_cast<uint8_t*>(&message);
}

TEST(Handshake, WhatWeMakePasses) {
  EXPECT_EQ(check_handle(make_handle()), HandshakeError::kNone);
  EXPECT_EQ(check(make_hello()), HandshakeError::kNone);
  EXPECT_EQ(check(make_welcome()), HandshakeError::kNone);
}

TEST(Handshake, AHandleCutAnywhereIsRefused) {
  for (const int filler : {0x00, 0xFF, 0xA5}) {
    for (size_t length = 0; length < sizeof(Handle); ++length) {
      Handle handle = make_handle();
      std::memset(bytes_of(handle) + length, filler, sizeof(Handle) - length);
      EXPECT_NE(check_handle(handle), HandshakeError::kNone) << "cut at " << length << ", then " << filler;
    }
  }
}

TEST(Handshake, AHandleWithAnyBitFlippedIsRefused) {
  for (size_t bit = 0; bit < sizeof(Handle) * 8; ++bit) {
    Handle handle = make_handle();
    bytes_of(handle)[bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
    EXPECT_NE(check_handle(handle), HandshakeError::kNone) << "bit " << bit;
  }
}

TEST(Handshake, ASealedHandleMustStillMakeSense) {
  const auto expect_refused = [](auto&& damage) {
    Handle handle = make_handle();
    damage(handle);
    seal_handle(handle, kNonce);
    EXPECT_EQ(check_handle(handle), HandshakeError::kMalformed);
  };
  expect_refused([](Handle& handle) { handle.rails = 0; });
  expect_refused([](Handle& handle) { handle.rails = kMaxQueuePairs + 1; });
  expect_refused([](Handle& handle) { handle.queue_pairs_per_rail = 0; });
  expect_refused([](Handle& handle) { handle.queue_pairs_per_rail = UINT32_MAX; });
  expect_refused([](Handle& handle) { handle.address.family = 0; });
  expect_refused([](Handle& handle) { handle.address.family = 10; });
}

// Whatever passes can be used without looking again: counts index arrays, addresses are aligned.
TEST(Handshake, AHelloWithAnyBitFlippedIsRefusedOrUsable) {
  for (size_t bit = 0; bit < sizeof(Hello) * 8; ++bit) {
    Hello hello = make_hello();
    bytes_of(hello)[bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
    if (check(hello) != HandshakeError::kNone) continue;
    EXPECT_GE(bit / 8, sizeof(HandshakeHeader));
    EXPECT_TRUE(hello.rails >= 1 && hello.rails <= kMaxQueuePairs);
    EXPECT_TRUE(hello.queue_pairs >= 2 && hello.queue_pairs <= kMaxQueuePairs);
    EXPECT_TRUE(hello.control_address != 0 && hello.control_address % alignof(ControlBlock) == 0);
  }
}

TEST(Handshake, AWelcomeWithAnyBitFlippedIsRefusedOrUsable) {
  for (size_t bit = 0; bit < sizeof(Welcome) * 8; ++bit) {
    Welcome welcome = make_welcome();
    bytes_of(welcome)[bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
    if (check(welcome) != HandshakeError::kNone || welcome.refusal != 0) continue;
    EXPECT_GE(bit / 8, sizeof(HandshakeHeader));
    EXPECT_TRUE(welcome.rails >= 1 && welcome.rails <= kMaxQueuePairs);
    EXPECT_TRUE(welcome.queue_pairs >= 1 && welcome.queue_pairs <= 2);
    EXPECT_TRUE(welcome.joined_pairs != 0 && welcome.joined_pairs < 1U << welcome.queue_pairs);
    for (uint32_t q = 0; q < welcome.queue_pairs; ++q) {
      EXPECT_LT(welcome.origin[q], 2);
      EXPECT_LT(welcome.rail_of[q], welcome.rails);
    }
    EXPECT_TRUE(welcome.page_bytes >= 4096 && welcome.page_bytes <= 65536);
    EXPECT_EQ(welcome.page_bytes & (welcome.page_bytes - 1), 0U);
    for (uint32_t q = 0; q < welcome.queue_pairs; ++q)
      EXPECT_TRUE(welcome.window[q] >= 1 && welcome.window[q] <= 65536);
  }
}

// The control address stands near the end: a message that stops before it does not pass.
TEST(Handshake, AHelloThatStopsBeforeItsControlAddressIsRefused) {
  for (size_t length = 0; length < offsetof(Hello, control_address); ++length) {
    Hello hello = make_hello();
    std::memset(bytes_of(hello) + length, 0, sizeof(Hello) - length);
    EXPECT_NE(check(hello), HandshakeError::kNone) << "cut at " << length;
  }
}

TEST(Handshake, AWelcomeThatStopsBeforeItsWindowsIsRefused) {
  for (size_t length = 0; length < offsetof(Welcome, window) + 4; ++length) {
    Welcome welcome = make_welcome();
    std::memset(bytes_of(welcome) + length, 0, sizeof(Welcome) - length);
    EXPECT_NE(check(welcome), HandshakeError::kNone) << "cut at " << length;
  }
}

TEST(Handshake, TheCauseIsNamed) {
  const auto expect = [](HandshakeError error, auto&& damage) {
    Hello hello = make_hello();
    damage(hello.header);
    EXPECT_EQ(check(hello), error);
    Welcome welcome = make_welcome();
    damage(welcome.header);
    EXPECT_EQ(check(welcome), error);
  };
  expect(HandshakeError::kForeign, [](HandshakeHeader& header) { header.magic = 0x0D0A2E312F505448; });
  expect(HandshakeError::kVersion, [](HandshakeHeader& header) { header.version = kProtocolVersion + 1; });
  expect(HandshakeError::kVersion, [](HandshakeHeader& header) { header.version = 0; });
  expect(HandshakeError::kMalformed, [](HandshakeHeader& header) { --header.length_bytes; });
  expect(HandshakeError::kNonce, [](HandshakeHeader& header) { header.nonce ^= 1; });
  expect(HandshakeError::kNonce, [](HandshakeHeader& header) { header.nonce ^= uint64_t{1} << 63; });
}

// A build that has room for more says so in its handle, and then goes by what the other end has.
TEST(Handshake, ThePeerMayHaveMoreButNotLess) {
  const auto seal = [](Limits limits, uint32_t queue_pairs_per_rail = 1) {
    Handle handle = make_handle();
    handle.queue_pairs_per_rail = queue_pairs_per_rail;
    seal_handle(handle, kNonce, limits);
    return check_handle(handle);
  };
  EXPECT_EQ(seal({256, 128}), HandshakeError::kNone);
  EXPECT_EQ(seal({256, 128}, 128), HandshakeError::kNone);
  EXPECT_EQ(seal({256, 128}, 129), HandshakeError::kMalformed);
  EXPECT_EQ(agree({256, 128}), kOwnLimits);
  EXPECT_EQ(count_queue_pairs(1, 1, 1, 128), kMaxQueuePairs);
  for (const Limits limits : {Limits{16, 8}, Limits{32, 7}, Limits{48, 8}, Limits{0, 0}})
    EXPECT_EQ(seal(limits), HandshakeError::kMalformed) << limits.message_ring << ' ' << limits.queue_pairs;

  // What is sent to us was agreed, and is no more than we have.
  for (const Limits limits : {Limits{64, 8}, Limits{32, 9}, Limits{16, 8}}) {
    Hello hello = make_hello();
    hello.header = make_header(sizeof(Hello), kNonce, limits);
    EXPECT_EQ(check(hello), HandshakeError::kMalformed) << limits.message_ring << ' ' << limits.queue_pairs;
    Welcome welcome = make_welcome();
    welcome.header = make_header(sizeof(Welcome), kNonce, limits);
    EXPECT_EQ(check(welcome), HandshakeError::kMalformed) << limits.message_ring << ' ' << limits.queue_pairs;
  }
}

TEST(Handshake, EveryErrorHasItsOwnText) {
  std::set<std::string> texts;
  for (int error = 0; error <= static_cast<int>(HandshakeError::kNonce); ++error) {
    texts.insert(describe(static_cast<HandshakeError>(error)));
  }
  EXPECT_EQ(texts.size(), static_cast<size_t>(HandshakeError::kNonce) + 1);
  EXPECT_EQ(texts.count("unknown"), 0U);
}

TEST(Handshake, ARefusalIsHeardWhateverElseTheWelcomeSays) {
  Welcome welcome{};
  welcome.header = make_header(sizeof(Welcome), kNonce);
  welcome.refusal = static_cast<uint32_t>(Refusal::kResources);
  EXPECT_EQ(check(welcome), HandshakeError::kNone);
  welcome.header.nonce = 0;
  EXPECT_EQ(check(welcome), HandshakeError::kNonce) << "but not from strangers";
}

// Where rails lie in different subnets, some of the offered queue pairs have no partner.
TEST(Handshake, AWelcomeNamesItsConnection) {
  Welcome welcome = make_welcome();
  welcome.id = 0;
  EXPECT_EQ(check(welcome), HandshakeError::kMalformed);
}

TEST(Handshake, AReadyAcceptsOnlyWhatWasOffered) {
  Ready ready{make_header(sizeof(Ready), kNonce), 0, {}};
  EXPECT_EQ(check_ready(ready, kNonce, false), HandshakeError::kNone);
  EXPECT_EQ(check_ready(ready, kNonce, true), HandshakeError::kNone);
  EXPECT_EQ(check_ready(ready, kNonce ^ 1, true), HandshakeError::kNonce);
  ready.accepts_offer = 1;
  EXPECT_EQ(check_ready(ready, kNonce, true), HandshakeError::kNone);
  EXPECT_EQ(check_ready(ready, kNonce, false), HandshakeError::kMalformed);
  ready.accepts_offer = 2;
  EXPECT_EQ(check_ready(ready, kNonce, true), HandshakeError::kMalformed);
}

TEST(Handshake, AWelcomeMayAnswerFewerQueuePairsThanOffered) {
  Welcome welcome = make_welcome();
  welcome.queue_pairs = welcome.joined_pairs = 1;
  welcome.origin[0] = 1;
  EXPECT_EQ(check(welcome), HandshakeError::kNone);
  for (const uint32_t joined : {0, 2}) {
    welcome.joined_pairs = joined;
    EXPECT_EQ(check(welcome), HandshakeError::kMalformed) << "none of those that there are";
  }
  welcome.joined_pairs = 1;
  welcome.queue_pairs = 2;
  EXPECT_EQ(check(welcome), HandshakeError::kMalformed) << "one queue pair twice";
  welcome = make_welcome();
  welcome.origin[1] = 2;
  EXPECT_EQ(check(welcome), HandshakeError::kMalformed) << "a queue pair that was not offered";
  welcome = make_welcome();
  welcome.rail_of[0] = 2;
  EXPECT_EQ(check(welcome), HandshakeError::kMalformed) << "a rail that is not there";
}

TEST(Handshake, AnUnreachablePeerTellsItsRails) {
  Welcome welcome{};
  welcome.header = make_header(sizeof(Welcome), kNonce);
  welcome.refusal = static_cast<uint32_t>(Refusal::kUnreachable);
  EXPECT_EQ(check(welcome), HandshakeError::kMalformed);
  welcome.rails = kMaxQueuePairs;
  EXPECT_EQ(check(welcome), HandshakeError::kNone);
}

TEST(Handshake, BothEndsCountTheSameQueuePairs) {
  for (uint32_t rails_a = 1; rails_a <= 8; ++rails_a) {
    for (uint32_t rails_b = 1; rails_b <= 8; ++rails_b) {
      for (uint32_t per_rail = 1; per_rail <= 8; ++per_rail) {
        const uint32_t count = count_queue_pairs(rails_a, 1, rails_b, per_rail);
        EXPECT_EQ(count, count_queue_pairs(rails_b, per_rail, rails_a, 1));
        EXPECT_GE(count, std::max(rails_a, rails_b)) << "every rail is used";
        EXPECT_LE(count, kMaxQueuePairs);
      }
    }
  }
}

}  // namespace
}  // namespace verbena::protocol
