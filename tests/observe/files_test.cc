// Connections over softverbs, and the files that tell of them: written while they work, at a stall, on a
// signal, when the last one closes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/log_capture.h"
#include "base/scratch_path.h"
#include "transport/service/state_dump.h"
#include "transport/support/open_request.h"
#include "transport/support/transfer.h"

namespace verbena::transport {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;

// The sum of a metric's lines that have all the pieces.
uint64_t sum(const std::string& text, const std::string& metric,
             const std::vector<std::string>& pieces = {}) {
  uint64_t total = 0;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const bool is_meant = std::all_of(pieces.begin(), pieces.end(), [&](const std::string& piece) {
      return line.find(piece) != std::string::npos;
    });
    if (line.starts_with(metric + "{") && is_meant) total += std::stoull(line.substr(line.rfind(' ')));
  }
  return total;
}

class FilesTest : public testing::Test {
 protected:
  FilesTest() { std::filesystem::create_directory(folder_.get()); }
  ~FilesTest() override { stop_reports(); }

  // With counts of all that other cases of this process may have left.
  std::string stats() const { return tests::read_file(folder_.get() + "/stats.prom"); }
  nlohmann::json trace(const std::string& name = "trace.json") const {
    return nlohmann::json::parse(tests::read_file(folder_.get() + "/" + name), nullptr, false);
  }
  // `trace.stall1.json`; reports are numbered throughout the process.
  std::string find_trace(const std::string& cause) const {
    for (const auto& entry : std::filesystem::directory_iterator(folder_.get())) {
      const std::string name = entry.path().filename();
      if (name.starts_with("trace." + cause) && name.ends_with(".json")) return name;
    }
    return {};
  }
  static size_t count(const nlohmann::json& trace, const std::string& phase, const std::string& name) {
    size_t found = 0;
    if (trace.is_discarded()) return 0;
    for (const auto& event : trace["traceEvents"]) {
      const std::string event_name = event["name"];
      found += event["ph"] == phase && event_name.starts_with(name) ? 1 : 0;
    }
    return found;
  }

  tests::ScratchPath folder_{"observed"};
  const Settings both_{{"VERBENA_STATS", folder_.get() + "/stats.prom"},
                       {"VERBENA_STATS_INTERVAL_MS", "100"},
                       {"VERBENA_TRACE", folder_.get() + "/trace.json"}};
};

TEST_F(FilesTest, NobodyAsksNothingIsWritten) {
  auto [host, nic] = OwnNic(2);
  ConnectedPair connection = connect_here(nic, nic, true);
  EXPECT_EQ(connection.sender->observed(), nullptr);
  EXPECT_EQ(connection.receiving.receiver->observed(), nullptr);
  connection = {};
  EXPECT_TRUE(std::filesystem::is_empty(folder_.get()));
}

TEST_F(FilesTest, BothEndsCountTheSame) {
  const base::LogCapture log;
  auto [host, nic] = OwnNic(2, both_);
  ConnectedPair connection = connect_here(nic, nic, true);
  Transfer transfer;
  transfer.messages.assign(30, {.length_bytes = 3000});
  transfer.messages.insert(transfer.messages.end(), 20, {.length_bytes = 300'000, .may_stage = false});
  expect_transfer_here(connection, nic, nic, transfer);
  // While they stand, by the service thread.
  EXPECT_TRUE(poll_until([&] { return sum(stats(), "verbena_messages_total") == 100; }));
  EXPECT_EQ(sum(stats(), "verbena_open_connections"), 2U);
  connection = {};
  const std::string text = stats();
  for (const char* direction : {"direction=\"send\"", "direction=\"receive\""}) {
    EXPECT_EQ(sum(text, "verbena_messages_total", {direction, "path=\"staged\""}), 30U);
    EXPECT_EQ(sum(text, "verbena_messages_total", {direction, "path=\"direct\""}), 20U);
    EXPECT_EQ(sum(text, "verbena_bytes_total", {direction, "path=\"staged\""}), 90'000U);
    EXPECT_EQ(sum(text, "verbena_bytes_total", {direction, "path=\"direct\""}), 6'000'000U);
    EXPECT_EQ(sum(text, "verbena_rail_bytes_total", {direction}), 6'090'000U);
    EXPECT_GT(sum(text, "verbena_rail_bytes_total", {direction, "rail=\"softverbs0:1\""}), 0U);
    EXPECT_EQ(sum(text, "verbena_message_latency_seconds_count", {direction}), 50U);
    EXPECT_EQ(sum(text, "verbena_message_latency_seconds_bucket", {direction, "+Inf"}), 50U);
  }
  EXPECT_EQ(sum(text, "verbena_open_connections"), 0U);
  EXPECT_EQ(sum(text, "verbena_open_requests"), 0U);
  struct stat entry {};
  stat((folder_.get() + "/stats.prom").c_str(), &entry);
  EXPECT_EQ(entry.st_mode & 0444, 0444U & ~umask(0)) << "who collects it may be somebody else";

  EXPECT_THAT(
      log.lines_of(base::LogLevel::kInfo),
      testing::Contains(ContainsRegex("latencies: staged sends: 30 messages, mean [0-9.]+ us, median ")));

  const auto events = trace();
  ASSERT_FALSE(events.is_discarded());
  EXPECT_EQ(events["otherData"]["cause"], "the last connection closed");
  EXPECT_EQ(count(events, "M", "thread_name"), 2U);
  EXPECT_EQ(count(events, "e", "message"), 100U);
  EXPECT_EQ(count(events, "b", "message"), 100U);
  EXPECT_EQ(count(events, "e", "GPU unpacks and uses"), 30U);
  EXPECT_GE(count(events, "i", "grant sent"), 20U);
  EXPECT_GE(count(events, "i", "posted on softverbs"), 50U);
  EXPECT_GE(count(events, "i", "arrived on softverbs"), 50U);
}

TEST_F(FilesTest, AStallIsTracedUnderItsOwnName) {
  const base::LogCapture log;
  Host host(both_);
  // The handshake's is not to be the first, however busy the machine is.
  apply_settings({both_[0], both_[1], both_[2], {"VERBENA_STALL_WARNING_MS", "1500"}});
  ConnectedPair connection = connect_here(host.nic(), host.nic(), true);
  OpenReceive receive(connection, host.nic());
  EXPECT_TRUE(poll_until([&] {
    EXPECT_FALSE(receive.test());
    return !find_trace("stall").empty();
  }));
  const auto events = trace(find_trace("stall"));
  EXPECT_THAT(std::string(events["otherData"]["cause"]), ContainsRegex("stall: message 0: waits for data"));
  EXPECT_GE(count(events, "i", "stall"), 1U);
  EXPECT_EQ(count(events, "b", "message"), count(events, "e", "message") + 1) << "it is still open";
  EXPECT_TRUE(poll_until([&] { return sum(stats(), "verbena_stalls_total") != 0; }));
  EXPECT_EQ(sum(stats(), "verbena_open_requests"), 1U);
}

TEST_F(FilesTest, OnTheSignal) {
  const base::LogCapture log;
  Settings settings = both_;
  settings.emplace_back("VERBENA_DUMP_SIGNAL", "USR1");
  Host host(settings);
  start_reports();
  ConnectedPair connection = connect_here(host.nic(), host.nic(), true);
  raise(SIGUSR1);
  EXPECT_TRUE(poll_until([&] { return count(trace(find_trace("signal")), "M", "thread_name") >= 2; }));
}

// A disk that is full, or a folder that is not there: told once, and the connection goes on.
TEST_F(FilesTest, WhatCannotBeWrittenIsToldOnce) {
  const base::LogCapture log;
  auto [host, nic] =
      OwnNic(1, {{"VERBENA_STATS", "/nowhere/at/all.prom"}, {"VERBENA_STATS_INTERVAL_MS", "100"}});
  ConnectedPair connection = connect_here(nic, nic, true);
  Transfer transfer;
  transfer.messages.assign(5, {.length_bytes = 3000});
  EXPECT_TRUE(poll_until([&] { return !log.warnings().empty(); }));
  expect_transfer_here(connection, nic, nic, transfer);
  connection = {};
  EXPECT_THAT(
      log.warnings(),
      testing::ElementsAre(HasSubstr(
          "stats: cannot write /nowhere/at/all.prom (VERBENA_STATS): No such file or directory (errno 2)")));
}

// The service thread writes while the data thread counts.
TEST_F(FilesTest, WrittenWhileMessagesMove) {
  auto [host, nic] = OwnNic(2, both_);
  ConnectedPair connection = connect_here(nic, nic, true);
  Transfer transfer;
  transfer.messages.assign(200, {.length_bytes = 3000});
  std::string last;
  int changes = 0;
  EXPECT_TRUE(poll_until([&] {
    expect_transfer_here(connection, nic, nic, transfer);
    const std::string now = stats();
    changes += now != last ? 1 : 0;
    last = now;
    EXPECT_TRUE(request_report(ReportCause::kSignal, "now"));
    return changes >= 3;
  }));
}

}  // namespace
}  // namespace verbena::transport
