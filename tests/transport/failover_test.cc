// Rails are taken away under traffic and given back: everything arrives all the same, or an error comes in
// time. SOFTVERBS_RAILS names the file that says which rails are down; softverbs reads it a few times in 20
// ms.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "base/log_capture.h"
#include "base/rails_file.h"
#include "transport/support/job_key.h"
#include "transport/support/transfer.h"

namespace verbena::transport {
namespace {

const tests::RailsFile rails_file;
// Before softverbs reads its environment, once.
const bool is_environment_set = setenv("SOFTVERBS_RAILS", rails_file.path().c_str(), 1) == 0;

// Returns when the devices have told it: what follows in the test does so over these rails.
void pull(const Nic& nic, std::vector<size_t> rails) {
  std::string lines;
  for (const size_t rail : rails) lines += std::to_string(rail) + " down\n";
  rails_file.write(lines);
  EXPECT_TRUE(poll_until([&] {
    return std::ranges::none_of(rails, [&](size_t rail) { return nic.rails[rail]->is_healthy(); });
  }));
}
void plug_all(const Nic& nic) {
  rails_file.write("* up\n");
  EXPECT_TRUE(poll_until([&] {
    return std::ranges::all_of(nic.rails, [](verbs::Device* rail) { return rail->is_healthy(); });
  }));
}

Settings make_settings(const char* threshold, const char* limit_ms = "20000") {
  return {{"VERBENA_UNPACK", "1"},
          {"VERBENA_UNPACK_THRESHOLD", threshold},
          {"VERBENA_MIN_STRIPE_BYTES", "4096"},
          {"VERBENA_ACK_TIMEOUT", "10"},  // 4 ms
          {"VERBENA_RETRY_COUNT", "2"},
          {"VERBENA_RAIL_RETRY_MS", "20"},
          {"VERBENA_FAILOVER_TIMEOUT_MS", limit_ms}};
}

class FailoverTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override { rails_file.write("* up\n"); }
  static Transfer make_transfer(uint32_t count) {
    Transfer transfer;
    protocol::Random random(7);
    for (uint32_t i = 0; i < count; ++i)
      transfer.messages.push_back({.length_bytes = random.next() >> random.between(46, 63)});
    return transfer;
  }
};

// Goes on until `done`, with `meanwhile` called between steps.
template <typename Meanwhile>
void run_transfer(ConnectedPair& connection, const Nic& nic, const Transfer& transfer,
                  Meanwhile&& meanwhile) {
  SendingSide sender(*connection.sender, nic, transfer);
  ReceivingSide receiver(connection.receiving, nic, transfer);
  EXPECT_TRUE(poll_until([&] {
    meanwhile(receiver.finished());
    return step_both(sender, receiver);
  }));
  EXPECT_EQ(sender.status(), base::Status::kOk);
  EXPECT_EQ(receiver.status(), base::Status::kOk);
  EXPECT_EQ(receiver.problem(), "");
  EXPECT_EQ(receiver.finished(), transfer.messages.size());
}

// The same, of a transfer whose rails do not come back: both ends report it.
template <typename Meanwhile>
void run_to_error(const Nic& nic, const Transfer& transfer, Meanwhile&& meanwhile) {
  ConnectedPair connection = connect_here(nic, nic, true);
  SendingSide sender(*connection.sender, nic, transfer);
  ReceivingSide receiver(connection.receiving, nic, transfer);
  EXPECT_TRUE(poll_until([&] {
    meanwhile(receiver.finished());
    return step_both(sender, receiver);
  }));
  EXPECT_EQ(sender.status(), base::Status::kRemote);
  EXPECT_EQ(receiver.status(), base::Status::kRemote);
  EXPECT_EQ(receiver.problem(), "");
  plug_all(nic);  // the next test of this process finds them up
}

TEST_P(FailoverTest, TheOtherRailTakesOver) {
  auto [host, nic] = OwnNic(2, make_settings(GetParam()));
  for (const size_t dead : {0, 1}) {
    ConnectedPair connection = connect_here(nic, nic, true);
    const base::LogCapture log;
    bool is_cut = false;
    run_transfer(connection, nic, make_transfer(1500), [&](uint32_t finished) {
      if (is_cut || finished < 500) return;
      pull(nic, {dead});
      is_cut = true;
    });
    EXPECT_EQ(connection.sender->statistics().failed_queue_pairs, 1U);
    plug_all(nic);
  }
}

TEST_P(FailoverTest, RailsThatComeBackAreUsedAgain) {
  auto [host, nic, connection] = OwnConnection(2, make_settings(GetParam()));
  const base::LogCapture log;
  // Each after so many messages more; without any rail there are none, but time passes.
  const std::vector<std::vector<size_t>> phases = {{0}, {}, {1}, {}, {0, 1}, {}};
  constexpr uint32_t kPhaseMessages = 400;
  constexpr int64_t kWithoutRailsNs = 100 * base::kNsPerMs;
  size_t phase = 0;
  int64_t begin_ns = 0;
  run_transfer(connection, nic, make_transfer(3000), [&](uint32_t finished) {
    if (phase == phases.size()) return;
    const bool has_rails = phase == 0 || phases[phase - 1].size() < nic.rails.size();
    if (has_rails ? finished < (phase + 1) * kPhaseMessages
                  : base::monotonic_ns() - begin_ns < kWithoutRailsNs)
      return;
    phases[phase].empty() ? plug_all(nic) : pull(nic, phases[phase]);
    begin_ns = base::monotonic_ns();
    ++phase;
  });
  EXPECT_EQ(phase, phases.size());
  EXPECT_GE(connection.sender->statistics().failed_queue_pairs, 1U);
}

// Its records go over a control socket that another connection's handshake made, and that is gone by then.
TEST_P(FailoverTest, AConnectionOnASharedSocketRecovers) {
  const JobKeyFile key("failover_key", "Xyzzy-plugh-secret-0123456789");
  for (const bool encrypts : {false, true}) {
    Settings settings = make_settings(GetParam());
    if (encrypts) {
      settings.push_back(key.settings().front());
      settings.emplace_back("VERBENA_ENCRYPTION", "1");
    }
    auto [host, nic] = OwnNic(2, settings);
    ConnectedPair first = connect_here(nic, nic, true), connection = connect_here(nic, nic, true);
    const base::LogCapture log;
    bool is_cut = false;
    run_transfer(connection, nic, make_transfer(1500), [&](uint32_t finished) {
      if (finished >= 250) first = {};
      if (is_cut || finished < 500) return;
      pull(nic, {1});
      is_cut = true;
    });
    EXPECT_EQ(connection.sender->statistics().failed_queue_pairs, 1U);
    plug_all(nic);
  }
}

TEST_P(FailoverTest, ASingleRailIsBuiltAnew) {
  auto [host, nic, connection] = OwnConnection(1, make_settings(GetParam()));
  const base::LogCapture log;
  bool is_cut = false, is_back = false;
  run_transfer(connection, nic, make_transfer(1500), [&](uint32_t finished) {
    if (!is_cut && finished >= 500) {
      pull(nic, {0});
      is_cut = true;
    }
    // A cut that no queue pair has noticed needs nothing built anew.
    if (is_cut && !is_back && connection.sender->statistics().failed_queue_pairs != 0) {
      plug_all(nic);
      is_back = true;
    }
  });
  EXPECT_TRUE(is_back);
  EXPECT_GE(connection.sender->statistics().revived_queue_pairs, 1U);
  EXPECT_GE(connection.receiving.receiver->statistics().revived_queue_pairs, 1U);
}

TEST_P(FailoverTest, WithoutAnyRailTheErrorComesInTime) {
  auto [host, nic] = OwnNic(2, make_settings(GetParam(), "2000"));
  const base::LogCapture log;
  bool is_cut = false;
  run_to_error(nic, make_transfer(1500), [&](uint32_t finished) {
    if (is_cut || finished < 500) return;
    pull(nic, {0, 1});
    is_cut = true;
  });
  std::string all;
  for (const auto& line : log.warnings()) all += line + "\n";
  EXPECT_NE(all.find("VERBENA_FAILOVER_TIMEOUT_MS"), std::string::npos) << all;
  EXPECT_NE(all.find("rail softverbs0:1"), std::string::npos) << all;
  EXPECT_NE(all.find("rail softverbs1:1"), std::string::npos) << all;
}

// What has landed and is not looked at stays as it is while the queue pair that brought it is replaced.
TEST_F(FailoverTest, PagesThatAreHeldOutliveTheirQueuePair) {
  auto [host, nic, connection] = OwnConnection(1, make_settings("unlimited"));
  const base::LogCapture log;
  Transfer transfer;
  transfer.messages.assign(12, {.length_bytes = 3000});
  transfer.sends_ahead = 12;
  transfer.receives_ahead = 1;
  SendingSide sender(*connection.sender, nic, transfer);
  ReceivingSide receiver(connection.receiving, nic, transfer);
  EXPECT_TRUE(poll_until([&] { return sender.step(); }));
  EXPECT_TRUE(poll_until([&] { return receiver.step(), receiver.finished() != 0; }));
  EXPECT_GE(connection.receiving.receiver->held(0), 8U) << "they came with the first";
  pull(nic, {0});
  Transfer later;
  later.messages.assign(1, {.length_bytes = 3000});
  SendingSide late_sender(*connection.sender, nic, later);
  EXPECT_TRUE(poll_until(
      [&] { return late_sender.step(), connection.sender->statistics().failed_queue_pairs == 1; }));
  plug_all(nic);
  EXPECT_TRUE(poll_until([&] {
    late_sender.step();
    return connection.receiving.receiver->statistics().revived_queue_pairs == 1;
  })) << "by the service thread: nothing of the receiver's is open";
  EXPECT_TRUE(poll_until([&] { return receiver.step(); }));
  EXPECT_EQ(receiver.status(), base::Status::kOk);
  EXPECT_EQ(receiver.problem(), "");
  ReceivingSide late_receiver(connection.receiving, nic, later);
  EXPECT_TRUE(poll_until([&] {
    const bool is_sent = late_sender.step(), is_received = late_receiver.step();
    return is_sent && is_received;
  }));
  EXPECT_EQ(late_receiver.problem(), "");
  run_transfer(connection, nic, make_transfer(500), [](uint32_t) {});
}

// Whose cores others have may test a few times a second only: the clock must not wait for many tests.
TEST_P(FailoverTest, TheErrorNeedsFewTests) {
  auto [host, nic] = OwnNic(2, make_settings(GetParam(), "1000"));
  const base::LogCapture log;
  int steps_without_rails = 0;
  run_to_error(nic, make_transfer(1500), [&](uint32_t finished) {
    if (finished < 500) return;
    if (steps_without_rails++ == 0) pull(nic, {0, 1});
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  });
  EXPECT_LT(steps_without_rails, 150);
}

TEST_P(FailoverTest, WhereItIsOffTheConnectionFailsAtOnce) {
  Settings settings = make_settings(GetParam());
  settings.emplace_back("VERBENA_FAILOVER", "0");
  auto [host, nic, connection] = OwnConnection(2, settings);
  const Transfer transfer = make_transfer(1500);
  SendingSide sender(*connection.sender, nic, transfer);
  ReceivingSide receiver(connection.receiving, nic, transfer);
  const base::LogCapture log;
  bool is_cut = false;
  EXPECT_TRUE(poll_until([&] {
    if (!is_cut && receiver.finished() >= 500) {
      pull(nic, {1});
      is_cut = true;
    }
    receiver.step();
    return sender.step();
  }));
  EXPECT_EQ(sender.status(), base::Status::kRemote);
  plug_all(nic);
}

INSTANTIATE_TEST_SUITE_P(Paths, FailoverTest, testing::Values("0", "unlimited"), [](const auto& param) {
  return std::string(param.param[0] == '0' ? "Direct" : "Staged");
});

}  // namespace
}  // namespace verbena::transport
