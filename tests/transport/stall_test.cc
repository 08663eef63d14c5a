// Stalls: the line that names the cause of a wait, the report with the first one, and the end of waits that
// cannot succeed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <cstdlib>

#include "base/log_capture.h"
#include "base/scratch_path.h"
#include "transport/service/state_dump.h"
#include "transport/support/open_request.h"
#include "transport/support/transfer.h"

namespace verbena::transport {
namespace {

using testing::Contains;
using testing::ContainsRegex;
using testing::HasSubstr;

// Before softverbs reads its environment, once. Rail 2 never says what became of the first writes, a whole
// queue of them, 3 of some messages, 1 of the one with which its port goes down, 0 of the first write; no
// rail says what became of a read.
const bool is_environment_set =
    setenv("SOFTVERBS_FAULTS",
           "drop opcode=RDMA_READ every=1; drop rail=2 opcode=RDMA_WRITE every=1 times=16; "
           "drop rail=3 opcode=RDMA_WRITE_WITH_IMM nth=1; drop rail=3 opcode=RDMA_WRITE_WITH_IMM nth=41; "
           "drop rail=1 opcode=RDMA_WRITE_WITH_IMM nth=1; "
           "event rail=1 opcode=RDMA_WRITE_WITH_IMM nth=1 type=PORT_ERR; "
           "drop rail=0 opcode=RDMA_WRITE nth=1",
           1) == 0;

class StallTest : public testing::Test {
 protected:
  StallTest()
      : host_({{"VERBENA_DUMP", file_.get()},
               {"VERBENA_STALL_WARNING_MS", "20"},
               {"VERBENA_FAILOVER", "1"},
               {"VERBENA_ACK_TIMEOUT", "8"},  // 1 ms: a device's patience is twice that of the failover
               {"VERBENA_RETRY_COUNT", "2"},
               {"VERBENA_RAIL_RETRY_MS", "20"},
               {"VERBENA_FAILOVER_TIMEOUT_MS", "1500"}}) {}
  ~StallTest() override { stop_reports(); }

  // Goes on until a line of the log has `pattern`.
  template <typename Step>
  void expect_warning(Step&& step, const std::string& pattern) {
    EXPECT_TRUE(poll_until([&] {
      step();
      const auto lines = log_.warnings();
      return std::any_of(lines.begin(), lines.end(),
                         [&](const auto& line) { return testing::Matches(ContainsRegex(pattern))(line); });
    })) << pattern;
  }

  tests::ScratchPath file_{"stalls"};
  Host host_;
  const base::LogCapture log_;
};

TEST(StallClock, LinesComeLessAndLessOften) {
  protocol::StallClock clock(30 * base::kNsPerMs);
  const auto is_due = [&](int64_t ms) { return clock.is_line_due(ms * base::kNsPerMs); };
  EXPECT_FALSE(is_due(29));
  EXPECT_TRUE(is_due(30));
  EXPECT_FALSE(is_due(31));
  EXPECT_TRUE(is_due(61));
  EXPECT_FALSE(is_due(121));
  EXPECT_TRUE(is_due(122));
  clock.restart();
  EXPECT_TRUE(is_due(30));
  protocol::StallClock never(0);
  EXPECT_FALSE(never.is_line_due(INT64_MAX));
}

// A staged message. If it is there before its receive is posted it needs no grant, and all that the receiver
// writes are credit lines.
void transfer_staged(ConnectedPair& connection, const Nic& nic, bool is_there_first) {
  OpenSend send(connection, nic, 1000, true);
  bool is_sent = false, is_received = false;
  ASSERT_TRUE(poll_until([&] { return (is_sent = send.test()) || !is_there_first; }));
  OpenReceive receive(connection, nic);
  ASSERT_TRUE(poll_until([&] {
    is_sent = is_sent || send.test();
    is_received = is_received || receive.test();
    return is_sent && is_received;
  }));
  EXPECT_TRUE(connection.receiving.receiver->consume(*static_cast<ReceiveMessage*>(receive.request)));
}

// Where the network may reorder writes, the next line waits for the completion of the last. Until the queue
// pair is given up the sender has no credits, and the receive that is open finds nothing. The first test, as
// the line is the first write of its rail.
TEST_F(StallTest, ALostCompletionOfCreditsIsGivenUp) {
  constexpr uint32_t kWindow = 16;
  apply_settings({{"VERBENA_WORD_ORDER", "completed"}, {"VERBENA_WINDOW_PAGES", std::to_string(kWindow)}});
  const Nic& nic = host_.nic();
  ConnectedPair connection = connect_here(nic, nic, true);
  for (uint32_t i = 0; i < 3 * kWindow; ++i) transfer_staged(connection, nic, i < kWindow);
  EXPECT_EQ(connection.receiving.receiver->statistics().failed_queue_pairs, 1U);
  EXPECT_THAT(log_.warnings(),
              Contains(HasSubstr("the device reports no completions of grants and credits; 0 of 1 ")));
}

TEST_F(StallTest, ASendWaitsForItsGrant) {
  ConnectedPair connection = connect_here(host_.nic(), host_.nic(), true);
  OpenSend send(connection, host_.nic()), next(connection, host_.nic());
  expect_warning(
      [&] { EXPECT_FALSE(send.test() || next.test()); },
      "send to 127.0.0.1:[0-9]+: stall: message 0 of 100000 bytes: waits for a grant: the peer has not "
      "posted its receive; 2 requests are open, and none has completed for [0-9.]+ m?s "
      "\\(VERBENA_STALL_WARNING_MS 20 ms\\)$");
}

TEST_F(StallTest, ASendWaitsForCredits) {
  apply_settings({{"VERBENA_WINDOW_PAGES", "4"}});
  ConnectedPair connection = connect_here(host_.nic(), host_.nic(), true);
  std::vector<std::unique_ptr<OpenSend>> sends;
  for (int i = 0; i < 8; ++i)
    sends.push_back(std::make_unique<OpenSend>(connection, host_.nic(), 1000, true));
  expect_warning([&] { EXPECT_FALSE(sends.back()->test()); },
                 "stall: message [0-9] of 1000 bytes: waits for credits or for space in a send queue: "
                 "credits 0 on queue "
                 "pair 0; ");
}

TEST_F(StallTest, AReceiveWaitsForData) {
  ConnectedPair connection = connect_here(host_.nic(), host_.nic(), true);
  OpenReceive receive(connection, host_.nic());
  expect_warning([&] { EXPECT_FALSE(receive.test()); },
                 "receive from 127.0.0.1:[0-9]+: stall: message 0: waits for data: nothing has arrived, 0 of "
                 "at most 100000 "
                 "bytes have arrived; 1 requests are open, and none has completed for ");
}

TEST_F(StallTest, HandshakesWaitForThePeer) {
  protocol::Handle handle;
  const auto listener = take(Listener::open(host_.nic(), &handle), "a listener");
  void* device_handle = nullptr;
  expect_warning(
      [&] { EXPECT_EQ(take(listener->poll({}, &device_handle), "no receiver"), nullptr); },
      "stall: accept on 127.0.0.1:[0-9]+: waits for the peer to connect, for [0-9.]+ m?s of at most 300.0 s");
  const auto connector = take(Connector::start(host_.nic(), handle, -1), "a connector");
  expect_warning([&] { EXPECT_EQ(take(connector->poll(), "no sender"), nullptr); },
                 "stall: connect to 127.0.0.1:[0-9]+: waits for the peer's reply");
}

TEST_F(StallTest, TheFirstComesWithAReport) {
  // The handshake's is not to be the first, however busy the machine is.
  apply_settings({{"VERBENA_STALL_WARNING_MS", "1500"}});
  ConnectedPair connection = connect_here(host_.nic(), host_.nic(), true);
  OpenReceive receive(connection, host_.nic());
  expect_warning([&] { EXPECT_FALSE(receive.test()); }, "stall: message 0");
  EXPECT_TRUE(poll_until([&] {
    EXPECT_FALSE(receive.test());
    return file_.read().find("end of the state") != std::string::npos;
  }));
  EXPECT_THAT(file_.read(),
              ContainsRegex("Z: receive from 127.0.0.1:[0-9]+: stall: message 0: waits for data"));
  EXPECT_THAT(file_.read(),
              ContainsRegex("message 0, buffer 100000 bytes, arrived 0 bytes, slot 0: waits for data: "
                            "nothing has arrived for [0-9.]+ m?s"));
  EXPECT_FALSE(request_report(ReportCause::kStall, "another one soon after"));
  stop_reports();
  EXPECT_TRUE(request_report(ReportCause::kStall, "in the next life"));
}

Transfer make_direct(uint32_t count) {
  Transfer transfer;
  transfer.messages.assign(count, {.length_bytes = 5000, .may_stage = false});
  return transfer;
}

TEST_F(StallTest, ADeviceThatLosesCompletionsIsGivenUp) {
  const Nic& nic = host_.nic(1, 3);
  ConnectedPair connection = connect_here(nic, nic, false);
  expect_transfer_here(connection, nic, nic, make_direct(40));
  EXPECT_EQ(connection.sender->statistics().failed_queue_pairs, 1U);
  EXPECT_THAT(log_.warnings(),
              Contains(ContainsRegex("stall: message 0 of 5000 bytes: waits for completions: 1 on "
                                     "queue pair 0; ")));
  EXPECT_THAT(log_.warnings(),
              Contains(HasSubstr("the device reports no completions of the queue pair's requests; 0 of 1 ")));
}

// How the sender ends over that rail, without failover.
base::Status send_in_vain(const Nic& nic) {
  ConnectedPair connection = connect_here(nic, nic, false);
  const Transfer transfer = make_direct(60);
  SendingSide sender(*connection.sender, nic, transfer);
  ReceivingSide receiver(connection.receiving, nic, transfer);
  EXPECT_TRUE(poll_until([&] {
    receiver.step();
    return sender.step();
  }));
  return sender.status();
}

TEST_F(StallTest, AndFailsWithoutFailover) {
  apply_settings({{"VERBENA_FAILOVER", "0"}});
  EXPECT_EQ(send_in_vain(host_.nic(1, 3)), base::Status::kRemote);
}

TEST_F(StallTest, APortThatIsDownIsWaitedForNoLongerThanItsTriesTake) {
  apply_settings({{"VERBENA_FAILOVER", "0"}});
  EXPECT_EQ(send_in_vain(host_.nic(1, 1)), base::Status::kRemote);
  EXPECT_THAT(log_.warnings(), Contains(ContainsRegex("send to [^\n]*: the port is down$")));
}

TEST_F(StallTest, AQueueFullOfGrantsIsGivenUp) {
  const Nic& nic = host_.nic(1, 2);
  ConnectedPair connection = connect_here(nic, nic, false);
  expect_transfer_here(connection, nic, nic, make_direct(100));
  EXPECT_EQ(connection.receiving.receiver->statistics().failed_queue_pairs, 1U);
  EXPECT_THAT(
      log_.warnings(),
      Contains(ContainsRegex(
          "receive from [^\n]*: stall: message [0-9]+: waits for space in the send queue of grants")));
}

}  // namespace
}  // namespace verbena::transport
