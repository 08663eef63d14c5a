// Requests in every order, both ends in one process and on one thread.
#include <gtest/gtest.h>

#include "base/log_capture.h"
#include "transport/support/transfer.h"

namespace verbena::transport {
namespace {

constexpr uint32_t kRing = protocol::kMessageRing;

Transfer make_transfer(uint32_t count, size_t length_bytes,
                       ReceiveClass receive_class = ReceiveClass::kUnpacked) {
  Transfer transfer;
  transfer.messages.assign(count, {.length_bytes = length_bytes, .receive_class = receive_class});
  return transfer;
}

// Steps one side for a while, whatever comes of it.
template <typename Side>
void step_often(Side& side) {
  for (int i = 0; i < 2000; ++i) side.step();
}

TEST(Order, StagedSendsRunFarAheadOfReceives) {
  auto [host, nic, connection] = OwnConnection(2);
  Transfer transfer = make_transfer(200, 100);
  transfer.sends_ahead = 100;
  SendingSide sender(*connection.sender, nic, transfer);
  ReceivingSide receiver(connection.receiving, nic, transfer);
  step_often(sender);
  EXPECT_GE(sender.finished(), 8U) << "short messages leave before anybody asks for them";
  EXPECT_GE(sender.posted(), kRing) << "and requests are taken as far as the ring reaches";
  EXPECT_LT(sender.posted(), 200U);
  EXPECT_TRUE(poll_until([&] { return step_both(sender, receiver); }));
  EXPECT_EQ(receiver.problem(), "");
  EXPECT_EQ(receiver.finished(), 200U);
}

TEST(Order, DirectSendsWaitForTheirReceive) {
  auto [host, nic, connection] = OwnConnection(1, Settings{{"VERBENA_UNPACK_THRESHOLD", "0"}});
  Transfer transfer = make_transfer(200, 100);
  transfer.sends_ahead = 100;
  SendingSide sender(*connection.sender, nic, transfer);
  ReceivingSide receiver(connection.receiving, nic, transfer);
  step_often(sender);
  EXPECT_EQ(sender.posted(), 0U) << "a send is accepted when its receive is granted";
  EXPECT_TRUE(poll_until([&] { return step_both(sender, receiver); }));
  EXPECT_EQ(receiver.problem(), "");
}

TEST(Order, ReceivesRunFarAheadOfSends) {
  for (const auto receive_class : {ReceiveClass::kUnpacked, ReceiveClass::kSlotOnly, ReceiveClass::kNoSlot}) {
    auto [host, nic, connection] = OwnConnection();
    Transfer transfer = make_transfer(200, 100, receive_class);
    transfer.receives_ahead = 100;
    SendingSide sender(*connection.sender, nic, transfer);
    ReceivingSide receiver(connection.receiving, nic, transfer);
    step_often(receiver);
    EXPECT_EQ(receiver.finished(), 0U);
    const uint32_t room = receive_class == ReceiveClass::kNoSlot ? kRing : kUnpackQueueDepthSlots;
    EXPECT_EQ(receiver.posted(), room) << "as far as the ring or the slots reach";
    EXPECT_TRUE(poll_until([&] { return step_both(sender, receiver); }));
    EXPECT_EQ(receiver.problem(), "");
  }
}

TEST(Order, BothDirectionsAtOnce) {
  auto [host, nic] = OwnNic(2);
  ConnectedPair there = connect_here(nic, nic, true), back = connect_here(nic, nic, true);
  const Transfer transfer = make_transfer(300, 20'000);
  SendingSide sender_a(*there.sender, nic, transfer), sender_b(*back.sender, nic, transfer);
  ReceivingSide receiver_a(there.receiving, nic, transfer), receiver_b(back.receiving, nic, transfer);
  EXPECT_TRUE(poll_until([&] {
    const bool is_done = step_both(sender_a, receiver_b);
    return step_both(sender_b, receiver_a) && is_done;
  }));
  EXPECT_EQ(receiver_a.problem() + receiver_b.problem(), "");
  EXPECT_EQ(receiver_a.finished() + receiver_b.finished(), 600U);
}

// Sizes, paths, classes, shares and counts that a seed draws; both ends need not agree on which side unpacks.
TEST(Order, AnyMixture) {
  for (uint64_t seed = 1; seed <= 25; ++seed) {
    protocol::Random random(seed);
    const char* thresholds[] = {"0", "1000", "32k", "unlimited"};
    const char* pages[] = {"4k", "16k", "64k"};
    Host host({{"VERBENA_UNPACK_THRESHOLD", thresholds[random.between(0, 3)]},
               {"VERBENA_PAGE_BYTES", pages[random.between(0, 2)]},
               {"VERBENA_WINDOW_PAGES", std::to_string(random.between(0, 40))},
               {"VERBENA_MIN_STRIPE_BYTES", "4k"}});
    const Nic& sending = host.nic(static_cast<int>(random.between(1, 4)));
    const Nic& receiving = host.nic(static_cast<int>(random.between(1, 4)));
    ConnectedPair connection = connect_here(sending, receiving, random.happens(80));
    Transfer transfer;
    transfer.seed = seed;
    transfer.sends_ahead = random.between(1, 80);
    transfer.receives_ahead = random.between(1, 80);
    for (uint32_t i = random.between(50, 150); i != 0; --i) {
      transfer.messages.push_back({.length_bytes = random.next() >> random.between(46, 64 - 1),
                                   .extra_room_bytes = random.between(0, 100),
                                   .source_shift = random.between(0, 15),
                                   .target_shift = random.between(0, 15),
                                   .may_stage = random.happens(70),
                                   .receive_class = static_cast<ReceiveClass>(random.between(0, 2))});
    }
    expect_transfer_here(connection, sending, receiving, transfer);
    if (testing::Test::HasFailure()) FAIL() << "seed " << seed;
  }
}

TEST(Order, WhatIsStagedForNobodyIsCopiedByThePlugin) {
  auto [host, nic] = OwnNic(2);
  for (const auto receive_class : {ReceiveClass::kNoSlot, ReceiveClass::kSlotOnly}) {
    ConnectedPair connection = connect_here(nic, nic, true);
    expect_transfer_here(connection, nic, nic, make_transfer(100, 30'000, receive_class));
    const Statistics& statistics = connection.receiving.receiver->statistics();
    EXPECT_EQ(statistics.copied_messages, statistics.received_staged_messages);
    EXPECT_GT(statistics.copied_messages, 0U);
    EXPECT_EQ(statistics.unpack_descriptors, 0U);
    EXPECT_EQ(connection.sender->statistics().sent_staged().messages, statistics.received_staged_messages);
  }
}

TEST(Order, CountersTellTheTwoPathsApart) {
  auto [host, nic, connection] = OwnConnection();
  Transfer transfer;
  transfer.messages.assign(10, {.length_bytes = 5000});
  transfer.messages.resize(30, {.length_bytes = 100'000});
  expect_transfer_here(connection, nic, nic, transfer);
  const Statistics& sent = connection.sender->statistics();
  const Statistics& received = connection.receiving.receiver->statistics();
  EXPECT_EQ(sent.sent_staged().messages, 10U);
  EXPECT_EQ(sent.sent_staged().bytes, 50'000U);
  EXPECT_EQ(sent.sent_direct().messages, 20U);
  EXPECT_EQ(sent.sent_direct().bytes, 2'000'000U);
  EXPECT_EQ(received.received_staged_messages, 10U);
  EXPECT_EQ(received.received_staged_bytes, 50'000U);
  EXPECT_EQ(received.received_direct_messages, 20U);
  EXPECT_EQ(received.received_direct_bytes, 2'000'000U);
  EXPECT_EQ(received.unpack_descriptors, 20U) << "5000 bytes are a piece of 4096 and the rest";
}

class TooLongTest : public testing::TestWithParam<bool> {};

// One end notices, says what is wrong, and closes; the other learns it from that.
TEST_P(TooLongTest, AMessageLongerThanItsReceiveFailsBothEnds) {
  const bool is_staged = GetParam();
  auto [host, nic, connection] = OwnConnection();
  const base::LogCapture log;
  Memory memory(nic, 8192);
  Request *send = nullptr, *receive = nullptr, *next = nullptr;
  ASSERT_TRUE(connection.receiving.receiver->post(memory.bytes().data(), 4999, memory.registration(),
                                                  ReceiveClass::kUnpacked, &receive));
  // With the grant at hand the sender notices at once.
  static_cast<void>(
      connection.sender->post(memory.bytes().data(), 5000, memory.registration(), is_staged, &send));
  static_cast<void>(connection.sender->post(memory.bytes().data(), 100, memory.registration(), false, &next));
  base::Status sending = base::Status::kOk, receiving = base::Status::kOk;
  const auto poll_sender = [&] {
    bool is_done = false;
    Request* request = next != nullptr ? next : send;
    sending = connection.sender->test(*static_cast<SendMessage*>(request), &is_done).status();
    return sending != base::Status::kOk;
  };
  const auto poll_receiver = [&] {
    bool is_done = false;
    uint64_t bytes = 0;
    auto& message = *static_cast<ReceiveMessage*>(receive);
    receiving = connection.receiving.receiver->test(message, &is_done, &bytes).status();
    EXPECT_FALSE(is_done);
    return receiving != base::Status::kOk;
  };
  ASSERT_TRUE(poll_until([&] { return is_staged ? poll_receiver() : poll_sender(); }));
  EXPECT_EQ(is_staged ? receiving : sending, base::Status::kInvalidUsage);
  if (is_staged) {
    connection.receiving.receiver.reset();
    EXPECT_TRUE(poll_until(poll_sender));
    EXPECT_EQ(sending, base::Status::kRemote);
  } else {
    connection.sender.reset();
    EXPECT_TRUE(poll_until(poll_receiver));
    EXPECT_EQ(receiving, base::Status::kRemote);
  }
  ASSERT_EQ(log.warnings().size(), 2U) << "one line for each end";
  EXPECT_NE(log.warnings()[0].find("longer than its receive buffer (message 5000 bytes, buffer 4999 bytes)"),
            std::string::npos)
      << log.warnings()[0];
}

INSTANTIATE_TEST_SUITE_P(Paths, TooLongTest, testing::Bool(),
                         [](const auto& path) { return path.param ? "Staged" : "Direct"; });

}  // namespace
}  // namespace verbena::transport
