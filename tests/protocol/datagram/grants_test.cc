// Who is granted how much: turns, shares, and what is taken back.
#include "protocol/datagram/grants.h"

#include <gtest/gtest.h>

#include <map>
#include <vector>

namespace verbena::protocol::datagram {
namespace {

constexpr uint32_t kCredits = 512, kQuantum = 16;
constexpr int64_t kPatienceNs = 1'000;

// Messages of peers, without channels: a message's channel is its peer.
class GrantsTest : public testing::Test {
 protected:
  friend Grants;

  std::vector<ReceiveMessage>& receives() { return messages_; }
  uint32_t peer_of(const ReceiveMessage& message) const { return message.channel; }
  GrantAccount& account(uint32_t peer) { return accounts_[peer]; }
  uint32_t count_grantable(uint32_t outstanding) const { return kCredits - std::min(kCredits, outstanding); }
  void note_granted(uint32_t id, ReceiveMessage&) { order_.push_back(id); }
  void note_taken_back(uint32_t id, ReceiveMessage&) { taken_back_.push_back(id); }

  uint32_t want(uint32_t peer, uint32_t packets) {
    const auto id = static_cast<uint32_t>(messages_.size());
    messages_.emplace_back();
    messages_[id].channel = peer;
    messages_[id].wanted = packets;
    accounts_[peer];
    want_again(id);
    return id;
  }
  void want_again(uint32_t id) {
    const uint32_t peer = messages_[id].channel;
    grants_.want(*this, id, messages_[id], peer, accounts_[peer]);
  }
  void serve() { grants_.serve(*this, now_ns_); }
  void arrive(uint32_t id, uint32_t packets) {
    for (; packets != 0; --packets) grants_.note_arrival(messages_[id], accounts_[messages_[id].channel]);
    if (messages_[id].received == messages_[id].wanted) {
      grants_.withdraw(*this, id, messages_[id]);
    } else if (messages_[id].granted < messages_[id].wanted) {
      want_again(id);
    }
  }
  void pass_audits(uint32_t count) {
    for (; count != 0; --count) {
      ASSERT_NE(grants_.audit_ns(), kNeverNs);
      now_ns_ = grants_.audit_ns();
      grants_.audit(*this, now_ns_);
    }
  }
  uint32_t outstanding(uint32_t id) const { return messages_[id].outstanding(); }

  Grants grants_{{.quantum = kQuantum, .served_peers = 8, .patience_ns = kPatienceNs}};
  std::vector<ReceiveMessage> messages_;
  std::map<uint32_t, GrantAccount> accounts_;
  std::vector<uint32_t> order_, taken_back_;
  int64_t now_ns_ = 0;
};

TEST_F(GrantsTest, AMessageOfAPeerHasAllBeforeItsNextBegins) {
  const uint32_t first = want(0, 40), second = want(0, 40);
  serve();
  EXPECT_EQ(order_, (std::vector<uint32_t>{first, first, first, second, second, second}));
}

TEST_F(GrantsTest, PeersHaveTurnsAFewAtATime) {
  std::vector<uint32_t> ids;
  for (uint32_t peer = 0; peer < 10; ++peer) ids.push_back(want(peer, 2 * kQuantum));
  serve();
  ASSERT_EQ(order_.size(), 20U);
  for (uint32_t turn = 0; turn < 8; ++turn) EXPECT_EQ(order_[turn], turn) << "a quantum each";
  // Eight again, the first of which have all then; who waited follows.
  EXPECT_EQ(order_[8], 0U);
  for (const uint32_t id : ids) EXPECT_EQ(messages_[id].granted, 2 * kQuantum);
}

// However many long messages there are: it is granted before what is under way has come. Its peer's own come
// first.
TEST_F(GrantsTest, AShortMessageWaitsForNoLongOne) {
  for (uint32_t peer = 0; peer < 20; ++peer) want(peer, 60'000);
  serve();
  EXPECT_EQ(grants_.outstanding(), kCredits);
  const uint32_t brief = want(99, 17), own = want(3, 17);
  uint32_t packets = 0;
  for (; outstanding(brief) < 17 || outstanding(own) < 17; ++packets) {
    ASSERT_LT(packets, kCredits);
    arrive(packets % 8, 1);
    serve();
  }
}

TEST_F(GrantsTest, LengthsHaveTurnsWithEachOther) {
  std::map<uint32_t, uint32_t> granted;
  for (uint32_t peer = 0; peer < 4; ++peer) want(peer, 100'000);
  for (uint32_t peer = 4; peer < 8; ++peer) want(peer, 100);
  for (int i = 0; i < 4'000; ++i) {
    serve();
    for (uint32_t id = 0; id < 8; ++id) {
      if (outstanding(id) == 0) continue;
      arrive(id, 1);
      ++granted[id < 4];
      if (id >= 4 && messages_[id].received == 100) {  // there is always another
        messages_[id].received = messages_[id].granted = 0;
        want_again(id);
      }
    }
  }
  EXPECT_GT(granted[1], granted[0] / 2) << "long ones go on beside an endless row of short ones";
  EXPECT_GT(granted[0], granted[1] / 2);
}

TEST_F(GrantsTest, APeerAloneMayHaveAll) {
  want(0, 1'000);
  serve();
  EXPECT_EQ(grants_.outstanding(), kCredits);
}

// However much it wants, and before it is known that it has stopped.
TEST_F(GrantsTest, APeerThatHasStoppedLeavesAShareToOthers) {
  for (int i = 0; i < 100; ++i) want(0, 100'000);
  const uint32_t other = want(1, 100'000);
  serve();
  for (int i = 0; i < 10'000; ++i) {
    if (outstanding(other) != 0) arrive(other, 1);
    serve();
    ASSERT_LT(accounts_[0].outstanding, kCredits);
  }
  EXPECT_EQ(messages_[other].received, 10'000U) << "it has never waited";
  EXPECT_GE(accounts_[1].outstanding, kCredits / 6);
}

TEST_F(GrantsTest, WhatBringsNothingIsTakenBack) {
  const uint32_t dead = want(0, 10'000);
  serve();
  ASSERT_EQ(grants_.outstanding(), kCredits);
  pass_audits(1);
  EXPECT_TRUE(taken_back_.empty()) << "it may just have been granted";
  pass_audits(1);
  EXPECT_EQ(taken_back_, std::vector<uint32_t>{dead});
  EXPECT_EQ(grants_.outstanding(), 0U);
  EXPECT_EQ(grants_.audit_ns(), kNeverNs);
  serve();
  EXPECT_EQ(grants_.outstanding(), 0U) << "until something of it is heard";
  want_again(dead);  // its wish
  serve();
  EXPECT_EQ(grants_.outstanding(), kQuantum);
}

// What it was granted before the receiver took it back it may still send.
TEST_F(GrantsTest, APacketEndsAllDoubt) {
  const uint32_t slow = want(0, 10'000);
  serve();
  pass_audits(2);
  arrive(slow, 1);
  EXPECT_EQ(grants_.outstanding(), 0U) << "it was not expected any more";
  serve();
  EXPECT_EQ(grants_.outstanding(), kCredits);
  arrive(slow, kCredits);
  EXPECT_EQ(messages_[slow].received, kCredits + 1);
}

// Whatever it announces, again and again.
TEST_F(GrantsTest, APeerHoldsAQuantumForAllThatIsInDoubt) {
  std::vector<uint32_t> lies;
  for (int i = 0; i < 50; ++i) lies.push_back(want(0, 100'000));
  serve();
  for (int round = 0; round < 200; ++round) {
    if (grants_.audit_ns() != kNeverNs) pass_audits(1);
    for (const uint32_t id : lies) want_again(id);
    serve();
    if (round > 2) {
      ASSERT_LE(grants_.outstanding(), kQuantum) << round;
    }
  }
  const uint32_t honest = want(1, 1'000);
  serve();
  EXPECT_GE(outstanding(honest), kCredits / 2);
}

// Its other messages may be first.
TEST_F(GrantsTest, AMessageBehindOthersOfItsPeerIsWaitedForLonger) {
  const uint32_t first = want(0, 100'000), brief = want(0, 1);
  serve();
  ASSERT_EQ(outstanding(brief), 1U);
  for (uint32_t audit = 0; audit < 15; ++audit) {
    pass_audits(1);
    ASSERT_TRUE(taken_back_.empty()) << audit;
    arrive(first, 1);
    serve();
  }
  pass_audits(1);
  EXPECT_EQ(taken_back_, std::vector<uint32_t>{brief});
  EXPECT_GT(accounts_[0].outstanding, kQuantum) << "the other one goes on";
}

// What would have arrived meanwhile it does not know.
TEST_F(GrantsTest, AnAuditIsPutOffWhenThisEndWasNotThere) {
  want(0, 10'000);
  serve();
  pass_audits(1);
  now_ns_ = grants_.audit_ns() + 10 * kPatienceNs;
  grants_.audit(*this, now_ns_);
  EXPECT_TRUE(taken_back_.empty());
  EXPECT_EQ(grants_.audit_ns(), now_ns_ + kPatienceNs);
  pass_audits(1);
  EXPECT_EQ(taken_back_.size(), 1U);
}

TEST_F(GrantsTest, AnEndThatIsAlwaysLateTakesBackAllTheSame) {
  want(0, 10'000);
  serve();
  for (int i = 0; i < 4; ++i) {
    now_ns_ = grants_.audit_ns() + 2 * kPatienceNs;
    grants_.audit(*this, now_ns_);
  }
  EXPECT_EQ(taken_back_.size(), 1U);
}

// Nothing is left of a message that ends, whatever state it is in.
TEST_F(GrantsTest, AMessageThatEndsLeavesNothing) {
  const uint32_t served = want(0, 10'000), behind = want(0, 10'000), brief = want(1, 5),
                 doubted = want(2, 900);
  serve();
  pass_audits(2);
  want_again(doubted);
  serve();
  for (const uint32_t id : {behind, doubted, served, brief}) {
    grants_.withdraw(*this, id, messages_[id]);
    messages_[id] = {};
  }
  EXPECT_FALSE(grants_.is_any_wanted());
  EXPECT_EQ(grants_.outstanding(), 0U);
  for (const auto& [peer, account] : accounts_) EXPECT_EQ(account.outstanding, 0U) << peer;
  serve();
  const uint32_t next = want(3, 10);
  serve();
  EXPECT_EQ(outstanding(next), 10U);
}

}  // namespace
}  // namespace verbena::protocol::datagram
