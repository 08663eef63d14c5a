// If all messages are direct, credits are piggybacked on grants: no credit line is written, and no sender
// starves.
#include <gtest/gtest.h>

#include <atomic>

#include "transport/support/raw_peer.h"

namespace verbena::transport {
namespace {

constexpr uint32_t kMessageBytes = 64;

class CreditNoteTest : public testing::Test {
 protected:
  Request* post() {
    Request* request = nullptr;
    EXPECT_TRUE(end_.receiver->post(memory_.bytes().data(), kMessageBytes, memory_.registration(),
                                    ReceiveClass::kNoSlot, &request));
    return request;
  }
  bool finish(Request* request) {
    bool is_done = false;
    uint64_t bytes = 0;
    return poll_until([&] {
      const auto outcome = end_.receiver->test(*static_cast<ReceiveMessage*>(request), &is_done, &bytes);
      EXPECT_TRUE(outcome);
      return is_done || !outcome;
    });
  }
  // A receiver writes what its send queue had no room for when it is asked for a request, here one that is
  // open.
  void ask_for(Request* request) {
    bool is_done = false;
    uint64_t bytes = 0;
    if (request == nullptr) return;
    EXPECT_TRUE(end_.receiver->test(*static_cast<ReceiveMessage*>(request), &is_done, &bytes));
    EXPECT_FALSE(is_done);
  }
  // Message `sequence`'s grant, once it is there.
  protocol::Grant await_grant(uint32_t sequence, Request* open = nullptr) {
    const protocol::Grant& grant = sender_.control().grants[sequence % protocol::kMessageRing];
    EXPECT_TRUE(poll_until([&] {
      ask_for(open);
      return std::atomic_ref(const_cast<uint64_t&>(grant.stamp)).load() ==
             protocol::Grant::make_stamp(sequence, 0);
    }));
    return grant;
  }
  void answer(uint32_t sequence, const protocol::Grant& grant) {
    sender_.write(protocol::encode_tag({static_cast<uint8_t>(sequence), 0, true, true}, kMessageBytes),
                  grant.address, grant.remote_keys[0], kMessageBytes);
  }

  Host host_;
  Memory memory_{host_.nic(), 1 << 16};
  AcceptedEnd end_;
  RawSender sender_{host_.nic(), false, &end_};
};

TEST_F(CreditNoteTest, EveryGrantTellsWhatCameBackAndNoLineIsWritten) {
  constexpr uint32_t kMessages = 1000;
  uint32_t returned = 0;
  for (uint32_t i = 0; i < kMessages; ++i) {
    Request* request = post();
    const protocol::Grant grant = await_grant(i);
    EXPECT_EQ(grant.note.consumed, i);
    EXPECT_EQ(grant.note.queue_pair(), 0U);
    returned = grant.note.expand_returned(returned);
    // Entries are posted again in runs of at most an eighth of the window.
    EXPECT_LE(returned, i);
    EXPECT_GE(returned + sender_.welcome().window[0] / 8, i);
    answer(i, grant);
    ASSERT_TRUE(finish(request));
  }
  EXPECT_EQ(sender_.control().credits.consumed, 0U);
  EXPECT_EQ(sender_.control().credits.returned[0], 0U);
}

// Without posted receives there is no grant, so a credit line is written.
TEST_F(CreditNoteTest, WithoutGrantsALineTells) {
  Request* requests[protocol::kMessageRing / 4];
  uint32_t sequence = 0;
  for (Request*& request : requests) request = post();
  for (Request* request : requests) {
    answer(sequence, await_grant(sequence));
    ASSERT_TRUE(finish(request));
    ++sequence;
  }
  EXPECT_TRUE(poll_until([&] { return sender_.control().credits.returned[0] != 0; }));
}

// Over a device that places writes in any order (SOFTVERBS_PROFILE) a line must not land on a newer one.
TEST_F(CreditNoteTest, ALineNeverLandsOnANewerOne) {
  constexpr uint32_t kRounds = 100, kBurst = protocol::kMessageRing / 2;  // two lines are due after so many
  uint32_t sequence = 0;
  Request* open = post();
  for (uint32_t round = 0; round < kRounds; ++round) {
    Request* requests[kBurst] = {open};
    for (uint32_t i = 1; i < kBurst; ++i) requests[i] = post();
    open = post();
    protocol::Grant grants[kBurst];
    for (uint32_t i = 0; i < kBurst; ++i) grants[i] = await_grant(sequence + i, open);
    for (uint32_t i = 0; i < kBurst; ++i) answer(sequence + i, grants[i]);
    for (Request* request : requests) ASSERT_TRUE(finish(request));
    sequence += kBurst;
    // A line tells what has been consumed when it is written, and less than a line's worth stays untold.
    ASSERT_TRUE(poll_until([&] {
      ask_for(open);
      const uint32_t told = std::atomic_ref(const_cast<uint32_t&>(sender_.control().credits.consumed)).load();
      return sequence - told < protocol::kMessageRing / 4;
    })) << "round "
        << round << ": " << sender_.control().credits.consumed << " instead of " << sequence;
  }
}

// A message of no bytes fills a receive too, by its tag: it waits for a grant, and its credit comes back.
TEST(CreditNotes, EmptyMessagesStarveNobody) {
  Host host;
  Memory memory(host.nic(), 1 << 16);
  ConnectedPair connection = connect_here(host.nic(), host.nic(), false);
  for (uint32_t i = 0; i < 500; ++i) {
    Request *sent = nullptr, *received = nullptr;
    const auto send = [&] {
      EXPECT_TRUE(connection.sender->post(memory.bytes().data(), i % 7 == 0 ? 8 : 0, memory.registration(),
                                          false, &sent));
      return sent != nullptr;
    };
    ASSERT_FALSE(send());
    ASSERT_TRUE(connection.receiving.receiver->post(memory.bytes().data() + 64, 64, memory.registration(),
                                                    ReceiveClass::kNoSlot, &received));
    ASSERT_TRUE(poll_until(send));
    bool is_sent = false, is_received = false;
    uint64_t bytes = 0;
    ASSERT_TRUE(poll_until([&] {
      if (!is_sent) {
        EXPECT_TRUE(connection.sender->test(*static_cast<SendMessage*>(sent), &is_sent));
      }
      if (!is_received) {
        EXPECT_TRUE(connection.receiving.receiver->test(*static_cast<ReceiveMessage*>(received), &is_received,
                                                        &bytes));
      }
      return is_sent && is_received;
    })) << "message "
        << i;
  }
}

}  // namespace
}  // namespace verbena::transport
