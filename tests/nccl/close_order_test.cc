// Both ends close in every order, at rest and in the middle of transfers; nothing waits for the peer, nothing
// stays.
#include <algorithm>
#include <array>

#include "nccl/live_fixture.h"

namespace verbena::nccl::testing {
namespace {

enum class End { kSend, kRecv, kListen };

class CloseOrderTest : public LiveTest<NewestVersion>,
                       public ::testing::WithParamInterface<std::array<End, 3>> {
 protected:
  using Connection = LiveConnection<NewestVersion>;
  void SetUp() override {
    environment_.set("VERBENA_FAILOVER_TIMEOUT_MS", "3600000");
    LiveTest::SetUp();
    if (HasFatalFailure()) return;
    ASSERT_EQ(start(), 2);
  }
  static void close_in_order(Connection& connection) {
    // No close waits for the peer: that would last as long as VERBENA_FAILOVER_TIMEOUT_MS, here an hour.
    constexpr std::chrono::minutes limit(10);
    const auto begin = std::chrono::steady_clock::now();
    connection.deregister();
    for (const End end : GetParam()) {
      EXPECT_TRUE(end == End::kSend   ? connection.close_send()
                  : end == End::kRecv ? connection.close_recv()
                                      : connection.close_listen());
    }
    EXPECT_LT(std::chrono::steady_clock::now() - begin, limit);
  }
};

TEST_P(CloseOrderTest, AtRest) {
  Connection* connection = establish();
  ASSERT_EQ(connection->transfer(4096, 0, 0), nullptr);
  close_in_order(*connection);
}

TEST_P(CloseOrderTest, BeforeAnythingWasSent) {
  Connection* connection = establish();
  close_in_order(*connection);
}

TEST_P(CloseOrderTest, WithReceivesPostedAndNoSends) {
  Connection* connection = establish();
  for (int i = 0; i < 4; ++i) {
    ASSERT_NE(connection->receive(4096), nullptr);
  }
  close_in_order(*connection);
}

TEST_P(CloseOrderTest, WithSendsThatNobodyReceives) {
  Connection* connection = establish();
  for (int i = 0; i < 4; ++i) {
    ASSERT_NE(connection->send(4096), nullptr);
  }
  close_in_order(*connection);
}

// As after an abort: a completed receive that is neither unpacked nor consumed, and long messages in flight.
TEST_P(CloseOrderTest, InTheMiddleOfTransfers) {
  Connection* connection = establish();
  void* staged = connection->receive(4096);
  ASSERT_NE(connection->send(4096), nullptr);
  ASSERT_TRUE(connection->wait(staged, nullptr));
  ASSERT_NE(connection->receive(connection->received.bytes.last(2 << 20), connection->received.mhandle),
            nullptr);
  ASSERT_NE(connection->send(2 << 20), nullptr);
  close_in_order(*connection);
}

TEST_P(CloseOrderTest, OtherConnectionsGoOn) {
  Connection *closed = establish(), *other = establish();
  ASSERT_NE(closed->send(4096), nullptr);
  close_in_order(*closed);
  for (const size_t size : {0, 4096, 1 << 20}) EXPECT_EQ(other->transfer(size, 0, 0), nullptr);
}

// Many rounds of pages left in all states: if any were lost, the pool would run dry.
TEST_P(CloseOrderTest, NothingIsLostOverManyConnections) {
  const size_t files = count_open_files();
  size_t files_after_first = 0;
  for (int round = 0; round < 40; ++round) {
    LiveConnection<NewestVersion> connection(*net_, context_);
    ASSERT_TRUE(connection.establish(0, HandleShape::kFilled)) << round;
    ASSERT_EQ(connection.transfer(10000, 0, 0), nullptr) << round;
    for (int i = 0; i < 8; ++i) connection.send(16384);
    close_in_order(connection);
    if (round == 0) files_after_first = count_open_files();
  }
  EXPECT_LE(count_open_files(), std::max(files, files_after_first));
}

std::vector<std::array<End, 3>> list_orders() {
  std::array<End, 3> order{End::kSend, End::kRecv, End::kListen};
  std::vector<std::array<End, 3>> orders;
  do orders.push_back(order);
  while (std::next_permutation(order.begin(), order.end()));
  return orders;
}

std::string name_order(const ::testing::TestParamInfo<std::array<End, 3>>& info) {
  std::string name;
  for (const End end : info.param) name += end == End::kSend ? "Send" : end == End::kRecv ? "Recv" : "Listen";
  return name;
}

INSTANTIATE_TEST_SUITE_P(Orders, CloseOrderTest, ::testing::ValuesIn(list_orders()), name_order);

class LeavingTest : public LiveTest<NewestVersion> {
 protected:
  using Connection = LiveConnection<NewestVersion>;
};

// A rank that is done closes while the other one still has to look at what arrived.
TEST_F(LeavingTest, EverythingSentIsReceivedAfterTheSenderHasClosed) {
  ASSERT_EQ(start(), 2);
  constexpr size_t kMessages = 8;
  for (const size_t length : {size_t{32768}, size_t{65536}}) {  // staged, direct
    Connection* connection = establish();
    std::array<void*, kMessages> receives{}, sends{};
    const auto message = [&](LiveBuffer& buffer, size_t i) {
      return buffer.bytes.subspan(i * length, length);
    };
    for (size_t i = 0; i < kMessages; ++i) {
      receives[i] = connection->receive(message(connection->received, i), connection->received.mhandle);
      ASSERT_NE(receives[i], nullptr);
    }
    for (size_t i = 0; i < kMessages; ++i) {
      tools::fill_pattern(message(connection->sent, i), i + 1);
      sends[i] = connection->send(message(connection->sent, i), connection->sent.mhandle);
      ASSERT_NE(sends[i], nullptr);
      ASSERT_TRUE(connection->wait(sends[i], nullptr));
    }
    ASSERT_TRUE(connection->close_send());
    for (size_t i = 0; i < kMessages; ++i) {
      ASSERT_TRUE(connection->wait(receives[i], nullptr)) << "message " << i << ": " << connection->result;
      connection->place(message(connection->received, i));
      EXPECT_EQ(tools::check_pattern(message(connection->received, i), i + 1).wrong_bytes, 0u) << i;
      ASSERT_EQ((*net_)->irecv_consumed(connection->recv_comm, 1, receives[i]), abi::kSuccess);
    }
    // What never came fails, and says so.
    void* missing = connection->receive(message(connection->received, 0), connection->received.mhandle);
    ASSERT_NE(missing, nullptr);
    EXPECT_FALSE(connection->wait(missing, nullptr));
    EXPECT_EQ(connection->result, abi::kRemoteError);
  }
}

using HalfOpenTest = LiveTest<NewestVersion>;

TEST_F(HalfOpenTest, ListenersThatNobodyConnectsTo) {
  ASSERT_EQ(start(), 2);
  for (int i = 0; i < 20; ++i) {
    char handle[abi::kHandleBytes] = {};
    void *listen_comm = nullptr, *recv_comm = this;
    ASSERT_EQ(net_->listen(context_, 0, handle, &listen_comm), abi::kSuccess);
    ASSERT_EQ((*net_)->accept(listen_comm, &recv_comm, nullptr), abi::kSuccess);
    EXPECT_EQ(recv_comm, nullptr);
    EXPECT_EQ((*net_)->close_listen(listen_comm), abi::kSuccess);
  }
}

// NCCL drops a connect that another rank's failure interrupts: its state is the plugin's to clear up.
TEST_F(HalfOpenTest, ConnectThatIsNeverFinished) {
  ASSERT_EQ(start(), 2);
  const size_t files = count_open_files();
  char handle[abi::kHandleBytes] = {};
  void *listen_comm = nullptr, *send_comm = nullptr;
  ASSERT_EQ(net_->listen(context_, 0, handle, &listen_comm), abi::kSuccess);
  ASSERT_EQ(net_->connect(context_, 0, abi::kUndefined, handle, &send_comm, nullptr), abi::kSuccess);
  EXPECT_EQ((*net_)->close_listen(listen_comm), abi::kSuccess);
  ASSERT_EQ(send_comm, nullptr);
  EXPECT_EQ((*net_)->finalize(context_), abi::kSuccess);
  is_up_ = false;
  EXPECT_LE(count_open_files(), files);
}

TEST_F(HalfOpenTest, ReceiverLearnsThatTheSenderIsGone) {
  environment_.set("VERBENA_PEER_GRACE_MS", "100");
  auto* connection = start_connected();
  void* request = connection->receive(4096);
  ASSERT_NE(request, nullptr);
  ASSERT_TRUE(connection->close_send());
  LogCapture::get().take_lines();
  EXPECT_FALSE(connection->wait(request, nullptr));
  EXPECT_EQ(connection->result, abi::kRemoteError);
  EXPECT_EQ(LogCapture::get().take_warnings().size(), 1u);
  int done = 0;
  EXPECT_EQ((*net_)->test(request, &done, nullptr),
            abi::kRemoteError);  // the first error sticks, and is logged once
  EXPECT_TRUE(LogCapture::get().take_warnings().empty());
}

TEST_F(HalfOpenTest, SenderLearnsThatTheReceiverIsGone) {
  environment_.set("VERBENA_PEER_GRACE_MS", "100");
  auto* connection = start_connected();
  ASSERT_TRUE(connection->close_recv());
  LogCapture::get().take_lines();
  // Staged sends may still leave; since no peer returns credits, this must end in an error, not in a wait.
  const bool failed = poll_until([&] {
    void* request = connection->send(65536);
    if (connection->result != abi::kSuccess) return true;
    return !connection->wait(request, nullptr) && connection->result != abi::kSuccess;
  });
  EXPECT_TRUE(failed);
  EXPECT_EQ(connection->result, abi::kRemoteError);
  EXPECT_EQ(LogCapture::get().take_warnings().size(), 1u);
}

}  // namespace
}  // namespace verbena::nccl::testing
