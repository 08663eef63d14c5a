// How queue pairs are joined: to addresses that the network cannot resolve at once, and with which timeouts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

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
    hooks_.unanswered = 0;
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

TEST_F(JoiningTest, ASilentRailIsLeftSoonerWhereThereIsAnother) {
  EXPECT_EQ(find_ack_timeout(1, {}), 20);
  EXPECT_EQ(find_ack_timeout(2, {}), 15);
  EXPECT_EQ(find_ack_timeout(2, {{"VERBENA_ACK_TIMEOUT", "18"}}), 18);
  EXPECT_EQ(find_ack_timeout(2, {{"VERBENA_FAILOVER", "0"}}), 20) << "nothing takes over";
}

// 4.096 us * 2^code * 8 tries
TEST_F(JoiningTest, TheDeviceDoesNotWaitLongerThanTheFailoverMayTake) {
  EXPECT_EQ(find_ack_timeout(1, {{"VERBENA_FAILOVER_TIMEOUT_MS", "1000"}}), 14);
  EXPECT_EQ(find_ack_timeout(1, {{"VERBENA_FAILOVER_TIMEOUT_MS", "100"}}), 11);
  EXPECT_EQ(find_ack_timeout(2, {{"VERBENA_FAILOVER_TIMEOUT_MS", "60000"}}), 15);
  EXPECT_EQ(find_ack_timeout(1, {{"VERBENA_FAILOVER_TIMEOUT_MS", "60000"}}), 20);
}

}  // namespace
}  // namespace verbena::transport
