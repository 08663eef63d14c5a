// How queue pairs are joined: to addresses that the network cannot resolve at once, and with which timeouts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <stdexcept>

#include "base/log_capture.h"
#include "transport/support/connection.h"
#include "transport/support/faulty_devices.h"
#include "transport/support/transfer.h"

namespace verbena::transport {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using verbs::faulty::Hooks;

constexpr int kTries = 34;  // of one queue pair, as NCCL's own transport

class JoiningTest : public testing::Test {
 protected:
  ~JoiningTest() override {
    hooks_.unanswered = hooks_.unanswered_ms = 0;
    hooks_.unanswered_devices = 0;
    for (const char* name :
         {"VERBENA_ACK_TIMEOUT", "VERBENA_RETRY_COUNT", "VERBENA_FAILOVER_TIMEOUT_MS", "VERBENA_FAILOVER"})
      unsetenv(name);
  }
  // Of a connection made with these settings.
  int find_ack_timeout(int rails, Settings settings) {
    settings.insert(
        settings.begin(),
        {{"VERBENA_ACK_TIMEOUT", ""}, {"VERBENA_RETRY_COUNT", ""}, {"VERBENA_FAILOVER_TIMEOUT_MS", ""}});
    apply_settings(settings);
    const Nic& nic = host_.nic(rails);
    hooks_.last_ack_timeout = -1;
    const ConnectedPair connection = connect_here(nic, nic, false);
    return hooks_.last_ack_timeout;
  }

  const base::LogCapture log_;
  Hooks& hooks_ = find_hooks();
  Host host_{choose_faulty_devices()};
};

TEST_F(JoiningTest, AnAddressThatDoesNotAnswerIsAskedAgain) {
  hooks_.unanswered = 6;
  const Nic& nic = host_.nic(2);
  ConnectedPair connection = connect_here(nic, nic, false);
  EXPECT_EQ(hooks_.unanswered, 0);
  EXPECT_THAT(log_.warnings(), IsEmpty());
  Transfer transfer;
  transfer.messages.assign(4, {.length_bytes = 1 << 20});
  expect_transfer_here(connection, nic, nic, transfer);
}

TEST_F(JoiningTest, ButNotForEver) {
  hooks_.unanswered = INT32_MAX;
  const Nic& nic = host_.nic();
  EXPECT_THROW(connect_here(nic, nic, false), std::runtime_error);
  EXPECT_EQ(INT32_MAX - hooks_.unanswered, kTries);
  EXPECT_THAT(log_.warnings(), Contains(HasSubstr("the peer's address does not answer")));
}

// The caller has more to do: with several dead rails one call asks for no longer than with one, or two that
// are faster.
TEST_F(JoiningTest, OneCallDoesNotAskForLong) {
  constexpr int kRails = 4;
  hooks_.unanswered = INT32_MAX;
  hooks_.unanswered_ms = 600;
  const Nic& nic = host_.nic(kRails);
  protocol::Handle handle;
  auto listener = take(Listener::open(nic, &handle), "a listener");
  auto connector = take(Connector::start(nic, handle, -1), "a connector");
  void* device_handle = nullptr;
  ConnectedPair connection;
  const auto count_asked = [&] { return INT32_MAX - hooks_.unanswered; };
  const auto poll = [&] {
    if (connection.sender == nullptr) connection.sender = take(connector->poll(), "a sender");
    auto& receiver = connection.receiving.receiver;
    if (receiver == nullptr) receiver = take(listener->poll({}, &device_handle), "a receiver");
    return connection.sender != nullptr && receiver != nullptr;
  };
  ASSERT_TRUE(poll_until([&] {
    const int before = count_asked();
    EXPECT_FALSE(poll());
    EXPECT_LE(count_asked() - before, 2);
    return count_asked() >= kRails;
  }));
  hooks_.unanswered = 0;
  EXPECT_TRUE(poll_until(poll));
}

// --- A connection with another rail begins without the one whose peer does not answer, which the failover
// takes up again. Rails 0 and 1 are the sender's, 2 and 3 the receiver's.

struct Dead {
  const char* name;
  uint32_t rails;  // a bit for each
  int queue_pairs;
  bool are_queues_shared;
};

class DeadRailTest : public JoiningTest, public testing::WithParamInterface<Dead> {
 protected:
  DeadRailTest() {
    hooks_.most_srq_entries = GetParam().are_queues_shared ? INT32_MAX : 0;
    host_ = Host(choose_faulty_devices());
    apply_settings({{"VERBENA_QPS_PER_CONNECTION", std::to_string(GetParam().queue_pairs)},
                    {"VERBENA_RAIL_RETRY_MS", "20"}});
  }
  ~DeadRailTest() override {
    hooks_.most_srq_entries = INT32_MAX;
    for (const char* name : {"VERBENA_QPS_PER_CONNECTION", "VERBENA_RAIL_RETRY_MS"}) unsetenv(name);
  }
};

TEST_P(DeadRailTest, IsLeftToFailover) {
  hooks_.unanswered_devices = GetParam().rails;
  const Nic &sending = host_.nic(2), &receiving = host_.nic(2, 2);
  ConnectedPair connection = connect_here(sending, receiving, false);
  EXPECT_THAT(log_.warnings(), Contains(HasSubstr("starts with its other queue pairs")));
  EXPECT_GT(connection.sender->statistics().failed_queue_pairs, 0U) << "before anything is posted on it";
  Transfer transfer;
  transfer.messages.assign(20, {.length_bytes = 1 << 20});
  expect_transfer_here(connection, sending, receiving, transfer);
  hooks_.unanswered_devices = 0;
  const auto is_whole = [&] {
    return connection.sender->statistics().sent_rail_bytes[0] != 0 &&
           connection.sender->statistics().sent_rail_bytes[1] != 0;
  };
  EXPECT_TRUE(poll_until([&] {
    expect_transfer_here(connection, sending, receiving, transfer);
    return is_whole();
  })) << "both rails are used again";
}

INSTANTIATE_TEST_SUITE_P(
    Ends, DeadRailTest,
    testing::Values(Dead{"FirstOfTheSender", 1, 2, true}, Dead{"SecondOfTheSender", 2, 2, true},
                    Dead{"FirstOfTheReceiver", 4, 2, true}, Dead{"SecondOfTheReceiver", 8, 2, true},
                    Dead{"OfBoth", 10, 2, true}, Dead{"WithFourQueuePairs", 1, 4, true},
                    Dead{"OwnQueuesOfTheReceiver", 8, 2, false}, Dead{"OwnQueuesOfBoth", 5, 4, false}),
    [](const auto& dead) { return std::string(dead.param.name); });

// --- A device fails for good: nothing can be created on it any more, and what there is works no more.
// Devices 0 and 1 are the sender's, 2 and 3 the receiver's.

struct Failed {
  const char* name;
  uint32_t devices;  // a bit for each
};

class FailedDeviceTest : public JoiningTest, public testing::WithParamInterface<Failed> {
 protected:
  ~FailedDeviceTest() override {
    hooks_.dead_devices = hooks_.pairless_devices = 0;
    hooks_.dying_device = -1;
    hooks_.most_srq_entries = INT32_MAX;
  }
  void expect_transfer(const Nic& sending, const Nic& receiving) {
    const auto transfer = [&] {
      ConnectedPair connection = connect_here(sending, receiving, false);
      Transfer all;
      all.messages.assign(8, {.length_bytes = 1 << 18});
      expect_transfer_here(connection, sending, receiving, all);
    };
    EXPECT_NO_THROW(transfer()) << testing::PrintToString(log_.warnings());
  }
};

TEST_P(FailedDeviceTest, IsLeftOutOfNewConnections) {
  const Nic &sending = host_.nic(2), &receiving = host_.nic(2, 2);
  expect_transfer(sending, receiving);
  for (int device = 0; device < 4; ++device)
    if ((GetParam().devices >> device & 1) != 0) hooks_.end_device(device);
  for (int i = 0; i < 2; ++i) expect_transfer(sending, receiving);
  EXPECT_THAT(log_.warnings(), Contains(HasSubstr("not used for new connections: the device has failed")));
}

TEST_P(FailedDeviceTest, ARailWithoutQueuePairsIsLeftOut) {
  hooks_.pairless_devices = GetParam().devices;
  expect_transfer(host_.nic(2), host_.nic(2, 2));
  EXPECT_THAT(log_.warnings(), Contains(HasSubstr("a connection does not use this rail")));
}

INSTANTIATE_TEST_SUITE_P(Ends, FailedDeviceTest,
                         testing::Values(Failed{"FirstOfTheSender", 1}, Failed{"SecondOfTheSender", 2},
                                         Failed{"FirstOfTheReceiver", 4}, Failed{"SecondOfTheReceiver", 8},
                                         Failed{"FirstOfBoth", 5}, Failed{"AnotherOfEach", 9}),
                         [](const auto& failed) { return std::string(failed.param.name); });

class LastDeviceTest : public FailedDeviceTest {};

TEST_P(LastDeviceTest, LeavesNothing) {
  const Nic &sending = host_.nic(2), &receiving = host_.nic(2, 2);
  for (int device = 0; device < 4; ++device)
    if ((GetParam().devices >> device & 1) != 0) hooks_.end_device(device);
  EXPECT_THROW(connect_here(sending, receiving, false), std::runtime_error);
  EXPECT_THAT(log_.warnings(), Contains(HasSubstr("the device has failed")));
}

INSTANTIATE_TEST_SUITE_P(Ends, LastDeviceTest,
                         testing::Values(Failed{"AllOfTheSender", 3}, Failed{"AllOfTheReceiver", 12},
                                         Failed{"All", 15}),
                         [](const auto& failed) { return std::string(failed.param.name); });

// At any call on it, from the first of a connection to the last of a transfer.
class DyingDeviceTest : public FailedDeviceTest {};

TEST_P(DyingDeviceTest, MayFailAtAnyCall) {
  for (const bool are_queues_shared : {true, false}) {
    hooks_.most_srq_entries = are_queues_shared ? INT32_MAX : 0;
    bool has_failed = true;
    for (int call = 1; has_failed && !HasFailure(); ++call) {
      host_ = Host(choose_faulty_devices());
      const Nic &sending = host_.nic(2), &receiving = host_.nic(2, 2);
      hooks_.dying_device = std::countr_zero(GetParam().devices);
      hooks_.device_calls = 0;
      hooks_.fatal_call = call;
      SCOPED_TRACE("call " + std::to_string(call));
      expect_transfer(sending, receiving);
      has_failed = hooks_.dead_devices != 0;
      hooks_.dying_device = -1;
      hooks_.dead_devices = 0;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ends, DyingDeviceTest,
                         testing::Values(Failed{"FirstOfTheSender", 1}, Failed{"SecondOfTheSender", 2},
                                         Failed{"FirstOfTheReceiver", 4}, Failed{"SecondOfTheReceiver", 8}),
                         [](const auto& failed) { return std::string(failed.param.name); });

// Each end misses another queue pair: the connection does not begin without one that works at both.
TEST_F(JoiningTest, OneDeadRailOfEachEndLeavesNothing) {
  hooks_.unanswered_devices = 1 | 8;
  const Nic &sending = host_.nic(2), &receiving = host_.nic(2, 2);
  EXPECT_THROW(connect_here(sending, receiving, false), std::runtime_error);
  EXPECT_THAT(log_.warnings(), Contains(HasSubstr("the peer's address does not answer")));
}

TEST_F(JoiningTest, WithoutFailoverADeadRailIsAnError) {
  apply_settings({{"VERBENA_FAILOVER", "0"}});
  hooks_.unanswered_devices = 2;
  const Nic& nic = host_.nic(2);
  EXPECT_THROW(connect_here(nic, nic, false), std::runtime_error);
  EXPECT_THAT(log_.warnings(), Contains(HasSubstr("the peer's address does not answer")));
}

TEST_F(JoiningTest, ASilentRailIsLeftSoonerWhereThereIsAnother) {
  EXPECT_EQ(find_ack_timeout(1, {}), 20);
  EXPECT_EQ(find_ack_timeout(2, {}), 14);
  EXPECT_EQ(find_ack_timeout(2, {{"VERBENA_ACK_TIMEOUT", "18"}}), 18);
  EXPECT_EQ(find_ack_timeout(2, {{"VERBENA_FAILOVER", "0"}}), 20) << "nothing takes over";
}

// 4.096 us * 2^code * 8 tries
TEST_F(JoiningTest, TheDeviceDoesNotWaitLongerThanTheFailoverMayTake) {
  EXPECT_EQ(find_ack_timeout(1, {{"VERBENA_FAILOVER_TIMEOUT_MS", "1000"}}), 14);
  EXPECT_EQ(find_ack_timeout(1, {{"VERBENA_FAILOVER_TIMEOUT_MS", "100"}}), 11);
  EXPECT_EQ(find_ack_timeout(2, {{"VERBENA_FAILOVER_TIMEOUT_MS", "60000"}}), 14);
  EXPECT_EQ(find_ack_timeout(1, {{"VERBENA_FAILOVER_TIMEOUT_MS", "60000"}}), 20);
}

}  // namespace
}  // namespace verbena::transport
