// The state of all connections, written on a signal and on request: for connections that rest, that are at
// work, whose thread does not call, that shake hands, that close meanwhile.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <fstream>
#include <thread>

#include "base/log_capture.h"
#include "base/scratch_path.h"
#include "transport/service/state_dump.h"
#include "transport/support/open_request.h"
#include "transport/support/transfer.h"

namespace verbena::transport {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

size_t count(const std::string& text, const std::string& piece) {
  size_t found = 0;
  for (size_t at = text.find(piece); at != std::string::npos; at = text.find(piece, at + 1)) ++found;
  return found;
}

Settings add(Settings settings, const Settings& more) {
  settings.insert(settings.end(), more.begin(), more.end());
  return settings;
}

// A process that tells its state to a file, on USR1.
class StateReportTest : public testing::Test {
 protected:
  explicit StateReportTest(const Settings& settings = {})
      : host_(add({{"VERBENA_DUMP", file_.get()},
                   {"VERBENA_DUMP_SIGNAL", "USR1"},
                   {"VERBENA_STALL_WARNING_MS", "0"}},
                  settings)) {
    start_reports();
  }
  ~StateReportTest() override { stop_reports(); }

  bool is_told(size_t reports = 1) const { return count(file_.read(), "end of the state\n") >= reports; }
  // Takes steps until the file has so many reports.
  template <typename Step>
  std::string await_report(Step&& step, size_t reports = 1) {
    EXPECT_TRUE(poll_until([&] {
      step();
      return is_told(reports);
    }));
    return file_.read();
  }
  std::string await_report() {
    return await_report([] {});
  }

  tests::ScratchPath file_{"state"};
  Host host_;
  const Nic& nic_ = host_.nic(2);
};

TEST_F(StateReportTest, AConnectionThatRestsIsLookedAt) {
  ConnectedPair connection = connect_here(nic_, nic_, true);
  connection.sender->name_communicator(0x5eed);
  Transfer transfer;
  transfer.messages.assign(10, {.length_bytes = 20'000});
  expect_transfer_here(connection, nic_, nic_, transfer);
  raise(SIGUSR1);
  const std::string text = await_report();
  EXPECT_THAT(text, HasSubstr("state of 2 connections and handshakes, process " + std::to_string(getpid())));
  EXPECT_THAT(text, ContainsRegex("send to 127.0.0.1:[0-9]+, communicator 0x5eed, open for [^\n]*, idle\n"));
  EXPECT_THAT(text, ContainsRegex("receive from 127.0.0.1:[0-9]+, open for [^\n]*, idle\n"));
  EXPECT_THAT(text, HasSubstr("messages: next 10, posted before 10"));
  EXPECT_THAT(text, HasSubstr("messages: next 10, granted before 10, consumed before 10"));
  EXPECT_THAT(text, ContainsRegex("complete: staged 10 messages 200000 bytes"));
  EXPECT_THAT(
      text, ContainsRegex("queue pair 1: rail softverbs[01]:1, qp [0-9]+: live, port up, credits [0-9]+ of"));
  EXPECT_THAT(
      text, ContainsRegex("pages in host memory: [0-9]+ of [0-9]+ in use, 16384 bytes each; rail softverbs"));
  EXPECT_THAT(text, Not(HasSubstr("another thread read")));
}

TEST_F(StateReportTest, AConnectionAtWorkTellsItself) {
  ConnectedPair sending = connect_here(nic_, nic_, true), receiving = connect_here(nic_, nic_, true);
  OpenSend send(sending, nic_);
  OpenReceive receive(receiving, nic_);
  request_report(ReportCause::kSignal, "the test asks");
  const std::string text = await_report([&] { EXPECT_FALSE(send.test() || receive.test()); });
  EXPECT_THAT(text, HasSubstr(": the test asks\n"));
  EXPECT_THAT(text, HasSubstr("message 0, 100000 bytes, no path yet: waits for a grant"));
  EXPECT_THAT(text, HasSubstr("message 0, buffer 100000 bytes, arrived 0 bytes, slot 0: waits for data"));
  EXPECT_EQ(count(text, ", 1 requests open"), 2U);
  EXPECT_EQ(count(text, ", idle"), 2U);
  EXPECT_THAT(text, Not(HasSubstr("another thread read")));
}

TEST_F(StateReportTest, AThreadThatDoesNotCallHidesNothing) {
  ConnectedPair connection = connect_here(nic_, nic_, true);
  {
    OpenReceive receive(connection, nic_);
    OpenSend send(connection, nic_);
    EXPECT_TRUE(poll_until([&] {
      static_cast<void>(send.test());
      return receive.test();
    }));
    request_report(ReportCause::kSignal, "the test asks");
    const std::string text = await_report();
    EXPECT_THAT(text, ContainsRegex("receive from [^\n]*; the connection's thread does not call the plugin, "
                                    "so another thread read this state"));
    EXPECT_THAT(
        text,
        HasSubstr("slot 0: complete: waits until the GPU has unpacked or used the message (irecvConsumed)"));
    EXPECT_TRUE(poll_until([&] { return send.test(); }));
    EXPECT_TRUE(connection.receiving.receiver->consume(*static_cast<ReceiveMessage*>(receive.request)));
  }
}

TEST_F(StateReportTest, HandshakesTellWhatTheyWaitFor) {
  protocol::Handle handle;
  const auto listener = take(Listener::open(nic_, &handle), "a listener");
  const auto connector = take(Connector::start(nic_, handle, -1), "a connector");
  EXPECT_TRUE(poll_until([&] {
    EXPECT_EQ(take(connector->poll(), "no sender"), nullptr);
    request_report(ReportCause::kSignal, "the test asks");
    return count(file_.read(), "waits for the peer's reply") != 0;
  }));
  EXPECT_THAT(file_.read(), ContainsRegex("accept on 127.0.0.1:[0-9]+: waits for the peer to connect, for "));
}

TEST_F(StateReportTest, EachOfManyConnectionsHasItsPlace) {
  constexpr size_t kConnections = 100;
  std::vector<ConnectedPair> connections;
  for (size_t i = 0; i < kConnections; ++i)
    connections.push_back(connect_here(host_.nic(), host_.nic(), false));
  request_report(ReportCause::kSignal, "the test asks");
  const std::string text = await_report();
  EXPECT_EQ(count(text, "\nsend to "), kConnections);
  EXPECT_EQ(count(text, "\nreceive from "), kConnections);
}

// What a connection said when it failed: its thread never calls again.
TEST_F(StateReportTest, AFailedConnectionHasToldItsState) {
  ConnectedPair connection = connect_here(nic_, nic_, true);
  OpenSend send(connection, nic_);
  connection.receiving.receiver.reset();
  const base::LogCapture log;
  EXPECT_TRUE(poll_until([&] { return send.test() || !send.outcome; }));
  const std::string text = await_report();
  EXPECT_THAT(text, ContainsRegex("Z: send to 127.0.0.1:[0-9]+ failed\n"));
  EXPECT_THAT(text, ContainsRegex(
                        "send to 127.0.0.1:[0-9]+, open for [^\n]*, failed, closed by the peer, 1 requests"));
  EXPECT_THAT(text, HasSubstr("queue pair 0: rail softverbs0"));
  EXPECT_FALSE(request_report(ReportCause::kFailure, "another one soon after"));
}

TEST_F(StateReportTest, WithoutAFileTheLogHasIt) {
  apply_settings({{"VERBENA_DUMP", ""}});
  ConnectedPair connection = connect_here(nic_, nic_, true);
  const base::LogCapture log;
  EXPECT_FALSE(request_report(ReportCause::kFailure, "nobody wants to know"));
  raise(SIGUSR1);
  const auto is_told = [&] {
    return !log.warnings().empty() && log.warnings().back() == "verbena: end of the state";
  };
  EXPECT_TRUE(poll_until(is_told));
  EXPECT_THAT(log.warnings(), testing::Contains(ContainsRegex("^verbena: receive from .*, idle$")));
}

// Any number of times, while connections come, work and go.
TEST_F(StateReportTest, ConnectionsMayCloseMeanwhile) {
  std::atomic<bool> is_over{false};
  std::thread asking([&] {
    while (!is_over.load()) {
      request_report(ReportCause::kSignal, "the test asks");
      std::this_thread::sleep_for(std::chrono::microseconds(300));
    }
  });
  std::vector<std::thread> working;
  for (uint64_t seed = 1; seed <= 2; ++seed) {
    working.emplace_back([&, seed] {
      Transfer transfer;
      transfer.seed = seed;
      for (uint32_t i = 0; i < 60; ++i) transfer.messages.push_back({.length_bytes = i * 701});
      for (int round = 0; round < 12; ++round) {
        ConnectedPair connection = connect_here(nic_, nic_, true);
        expect_transfer_here(connection, nic_, nic_, transfer);
      }
    });
  }
  for (std::thread& thread : working) thread.join();
  is_over.store(true);
  asking.join();
  EXPECT_THAT(await_report(), HasSubstr("send to 127.0.0.1"));
}

TEST_F(StateReportTest, AFileMayBeOfAHostAndAProcess) {
  apply_settings({{"VERBENA_DUMP", file_.get() + ".%p"}});
  tests::ScratchPath expanded("state." + std::to_string(getpid()));
  request_report(ReportCause::kSignal, "the test asks");
  EXPECT_TRUE(poll_until([&] { return std::ifstream(expanded.get()).good(); }));
}

}  // namespace
}  // namespace verbena::transport
