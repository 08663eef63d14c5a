// What the proofs of a handshake and the MACs after it cover.
#include "transport/handshake_auth.h"

#include <gtest/gtest.h>

#include "transport/support/job_key.h"

namespace verbena::transport {
namespace {

using protocol::Hello;
using protocol::Ready;
using protocol::Refusal;
using protocol::Welcome;

constexpr char kSecret[] = "a secret of at least sixteen bytes";

std::span<uint8_t> as_bytes(auto& message) {
  return {reinterpret_cast<uint8_t*>(&message), sizeof(message)};
}

class HandshakeAuthTest : public testing::Test {
 protected:
  HandshakeAuthTest() {
    apply_settings(key_.settings());
    sender_ = take(HandshakeAuth::create(), "the sender's");
    receiver_ = take(HandshakeAuth::create(), "the receiver's");
    hello_.header = protocol::make_header(sizeof(hello_), 7);
    welcome_.header = protocol::make_header(sizeof(welcome_), 7);
    ready_.header = protocol::make_header(sizeof(ready_), 7);
    EXPECT_TRUE(sender_.sign(hello_));
    EXPECT_TRUE(receiver_.sign(hello_, welcome_));
    EXPECT_TRUE(sender_.sign(hello_, welcome_, ready_));
  }
  ~HandshakeAuthTest() override { apply_settings({}); }

  JobKeyFile key_{"key", kSecret}, other_key_{"other_key", "another secret of sixteen bytes"};
  HandshakeAuth sender_, receiver_;
  Hello hello_{};
  Welcome welcome_{};
  Ready ready_{};
};

TEST_F(HandshakeAuthTest, WhatWasSignedPasses) {
  EXPECT_EQ(receiver_.judge(hello_), Refusal::kNone);
  EXPECT_TRUE(sender_.verify(hello_, welcome_));
  EXPECT_TRUE(receiver_.verify(hello_, welcome_, ready_));
}

TEST_F(HandshakeAuthTest, EveryByteIsCovered) {
  const auto expect_noticed = [](auto& message, auto&& passes) {
    size_t unnoticed = 0;
    for (uint8_t& byte : as_bytes(message)) {
      byte ^= 0x10;
      unnoticed += passes();
      byte ^= 0x10;
    }
    EXPECT_EQ(unnoticed, 0U);
    EXPECT_TRUE(passes());
  };
  const auto passes_hello = [&] { return receiver_.judge(hello_) == Refusal::kNone; };
  const auto passes_welcome = [&] { return sender_.verify(hello_, welcome_); };
  const auto passes_ready = [&] { return receiver_.verify(hello_, welcome_, ready_); };
  expect_noticed(hello_, passes_hello);
  expect_noticed(welcome_, passes_welcome);
  expect_noticed(ready_, passes_ready);
  // What came before, too: a Hello that reached the other end changed.
  expect_noticed(hello_, passes_welcome);
  expect_noticed(hello_, passes_ready);
  expect_noticed(welcome_, passes_ready);
}

// A proof of an earlier connection is none of this one.
TEST_F(HandshakeAuthTest, ProofsAreNotWorthKeeping) {
  const auto later = take(HandshakeAuth::create(), "a later one");
  Welcome fresh = welcome_;
  ASSERT_TRUE(later.sign(hello_, fresh));
  EXPECT_FALSE(receiver_.verify(hello_, fresh, ready_));
  Hello next = hello_;
  ASSERT_TRUE(later.sign(next));
  EXPECT_FALSE(sender_.verify(next, welcome_));
}

TEST_F(HandshakeAuthTest, WhoHasWhichKey) {
  apply_settings(other_key_.settings());
  EXPECT_EQ(take(HandshakeAuth::create(), "another").judge(hello_), Refusal::kKeyWrong);
  apply_settings({});
  const auto bare = take(HandshakeAuth::create(), "one without a key");
  EXPECT_EQ(bare.judge(hello_), Refusal::kKeyUnknown);
  Hello plain{};
  ASSERT_TRUE(bare.sign(plain));
  EXPECT_EQ(receiver_.judge(plain), Refusal::kKeyMissing);
  EXPECT_EQ(bare.judge(plain), Refusal::kNone);
  plain.is_keyed = 1;
  EXPECT_EQ(receiver_.judge(plain), Refusal::kKeyWrong);
}

class RecordAuthTest : public HandshakeAuthTest {
 protected:
  RecordAuth start(ConnectionEnd end) {
    return take(sender_.start_records(end, hello_, welcome_), "records");
  }

  RecordAuth at_sender_ = start(ConnectionEnd::kSender), at_receiver_ = start(ConnectionEnd::kReceiver);
  const uint8_t record_[5] = {1, 2, 3, 4, 5};
  base::Mac mac_{};
};

TEST_F(RecordAuthTest, RecordsPassInTheirOrderAndOnce) {
  base::Mac second{};
  ASSERT_TRUE(at_sender_.seal(record_, mac_));
  ASSERT_TRUE(at_sender_.seal(record_, second));
  EXPECT_NE(mac_, second);
  EXPECT_TRUE(at_receiver_.verify(record_, mac_));
  EXPECT_TRUE(at_receiver_.verify(record_, second));
  EXPECT_FALSE(at_receiver_.verify(record_, second)) << "again";
  ASSERT_TRUE(at_receiver_.seal(record_, mac_));
  EXPECT_TRUE(at_sender_.verify(record_, mac_)) << "the other way";
}

TEST_F(RecordAuthTest, OneThatIsMissingOrChangedOrOurOwnDoesNotPass) {
  ASSERT_TRUE(at_sender_.seal(record_, mac_));
  EXPECT_FALSE(start(ConnectionEnd::kSender).verify(record_, mac_)) << "sent back to us";
  EXPECT_FALSE(start(ConnectionEnd::kReceiver).verify(std::span(record_).first(4), mac_));
  EXPECT_FALSE(start(ConnectionEnd::kReceiver).verify(record_, std::span(mac_).first(31)));
  ASSERT_TRUE(at_sender_.seal(record_, mac_));
  EXPECT_FALSE(start(ConnectionEnd::kReceiver).verify(record_, mac_)) << "the first one is missing";
  Welcome other = welcome_;
  other.proof.challenge[0] ^= 1;
  auto elsewhere =
      take(sender_.start_records(ConnectionEnd::kReceiver, hello_, other), "another connection's");
  EXPECT_FALSE(elsewhere.verify(record_, mac_));
}

TEST_F(RecordAuthTest, WithoutAKeyNothingIsAdded) {
  apply_settings({});
  auto records =
      take(take(HandshakeAuth::create(), "no key").start_records(ConnectionEnd::kSender, hello_, welcome_),
           "records");
  EXPECT_EQ(records.mac_bytes(), 0U);
  EXPECT_TRUE(records.seal(record_, {}));
  EXPECT_TRUE(records.verify(record_, {}));
  EXPECT_EQ(at_sender_.mac_bytes(), 32U);
}

}  // namespace
}  // namespace verbena::transport
