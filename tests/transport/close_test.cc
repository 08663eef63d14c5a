// Ends that close, in every order and in the middle of things; what must be left behind is nothing.
#include <dirent.h>
#include <gtest/gtest.h>

#include <optional>

#include "base/log_capture.h"
#include "transport/support/pool_probe.h"

namespace verbena::transport {
namespace {

size_t count_descriptors() {
  size_t count = 0;
  DIR* folder = opendir("/proc/self/fd");
  while (readdir(folder) != nullptr) ++count;
  closedir(folder);
  return count;
}

Transfer make_mixture(uint32_t count) {
  Transfer transfer;
  for (uint32_t i = 0; i < count; ++i) {
    transfer.messages.push_back(
        {.length_bytes = i % 3 == 0 ? 100'000U : 3000 * (i % 5), .may_stage = i % 7 != 0});
  }
  return transfer;
}

// Leaves messages in every state: staged and not taken, granted and not sent, half received.
void leave_traffic(ConnectedPair& connection, const Nic& nic, uint64_t seed) {
  protocol::Random random(seed);
  Transfer transfer = make_mixture(60);
  transfer.seed = seed;
  transfer.sends_ahead = random.between(1, 30);
  transfer.receives_ahead = random.between(1, 16);
  SendingSide sender(*connection.sender, nic, transfer);
  ReceivingSide receiver(connection.receiving, nic, transfer);
  for (uint32_t steps = random.between(0, 60); steps != 0; --steps) {
    if (random.happens(70)) sender.step();
    if (random.happens(50)) receiver.step();
  }
  EXPECT_EQ(sender.status(), base::Status::kOk);
  EXPECT_EQ(receiver.status(), base::Status::kOk);
  EXPECT_EQ(receiver.problem(), "");
  // In NCCL's order the ends close before their memory is deregistered.
  if (random.happens(50)) {
    connection.sender.reset();
    connection.receiving.receiver.reset();
  } else {
    connection.receiving.receiver.reset();
    connection.sender.reset();
  }
}

TEST(Close, EverythingThatWasSentArrivesAfterTheSenderHasGone) {
  auto [host, nic, connection] = OwnConnection(3);
  Transfer transfer;
  transfer.messages.assign(20, {.length_bytes = 20'000});
  transfer.sends_ahead = 20;
  SendingSide sender(*connection.sender, nic, transfer);
  ReceivingSide receiver(connection.receiving, nic, transfer);
  ASSERT_TRUE(poll_until([&] { return sender.step() || sender.finished() >= 8; }));
  // As many as left before anybody asked; the rest is what the peer will miss.
  const uint32_t finished = sender.finished();
  connection.sender.reset();
  const base::LogCapture log;
  EXPECT_TRUE(poll_until([&] { return receiver.finished() >= finished || receiver.step(); }));
  EXPECT_GE(receiver.finished(), finished) << "what was done at the sender is not lost";
  EXPECT_EQ(receiver.problem(), "");
  EXPECT_TRUE(poll_until([&] { return receiver.step(); }));
  EXPECT_EQ(receiver.status(), base::Status::kRemote) << "and the rest never comes";
}

// One end closes in the middle of things, or before the first of them: the other one learns of it.
void expect_learnt(bool sender_closes, uint32_t finished_before) {
  auto [host, nic, connection] = OwnConnection();
  const Transfer transfer = make_mixture(sender_closes ? 50 : 150);
  std::optional<SendingSide> sender(std::in_place, *connection.sender, nic, transfer);
  std::optional<ReceivingSide> receiver(std::in_place, connection.receiving, nic, transfer);
  poll_until([&] {
    const bool is_first = finished_before == 0;
    if (!is_first || !sender_closes) sender->step();
    if (!is_first || sender_closes) receiver->step();
    return receiver->finished() >= finished_before;
  });
  sender_closes ? connection.sender.reset() : connection.receiving.receiver.reset();
  sender_closes ? sender.reset() : receiver.reset();
  const base::LogCapture log;
  EXPECT_TRUE(poll_until([&] { return sender ? sender->step() : receiver->step(); }));
  EXPECT_EQ(sender ? sender->status() : receiver->status(), base::Status::kRemote);
  EXPECT_EQ(receiver ? receiver->problem() : "", "");
  EXPECT_EQ(log.warnings().size(), 1U) << "one line says why";
}

TEST(Close, ReceiversLearnOfASenderThatCloses) {
  for (const uint32_t sent_before : {0, 5}) expect_learnt(true, sent_before);
}
TEST(Close, SendersLearnOfAReceiverThatCloses) {
  for (const uint32_t received_before : {0, 5}) expect_learnt(false, received_before);
}

// Its grants are out and it has nothing more to write: only the control socket tells.
TEST(Close, AReceiverThatOnlyWaitsLearnsItToo) {
  auto [host, nic, connection] = OwnConnection();
  const Transfer transfer = make_mixture(4);
  ReceivingSide receiver(connection.receiving, nic, transfer);
  for (int i = 0; i < 100; ++i) ASSERT_FALSE(receiver.step());
  ASSERT_EQ(receiver.posted(), 4U);
  connection.sender.reset();
  const base::LogCapture log;
  const int64_t start_ns = base::monotonic_ns();
  EXPECT_TRUE(poll_until([&] { return receiver.step(); }));
  EXPECT_EQ(receiver.status(), base::Status::kRemote);
  EXPECT_GE((base::monotonic_ns() - start_ns) / base::kNsPerMs, 190) << "what is under way has its grace";
}

TEST(Close, AnAbortLosesNoPage) {
  auto [host, nic] = OwnNic();
  PoolProbe probe(nic);
  ASSERT_NO_FATAL_FAILURE(probe.expect_whole()) << "before anything was aborted";
  const base::LogCapture log;  // the ends complain of each other
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    apply_settings(PoolProbe::make_settings(64));
    ConnectedPair connection = connect_here(nic, nic, true);
    leave_traffic(connection, nic, seed);
  }
  probe.expect_whole();
}

TEST(Close, TwoHundredConnectionsLeaveNothingBehind) {
#ifdef __SANITIZE_THREAD__
  constexpr int kConnections = 30;  // the same threads each time
#else
  constexpr int kConnections = 200;
#endif
  auto [host, nic] = OwnNic();
  PoolProbe probe(nic);
  apply_settings(PoolProbe::make_settings(64));
  size_t before = 0;
  for (int i = 0; i < kConnections; ++i) {
    ConnectedPair connection = connect_here(nic, nic, true);
    expect_transfer_here(connection, nic, nic, make_mixture(i % 10 == 0 ? 12 : 1));
    connection = {};
    if (i == 10) before = count_descriptors();  // what is kept once is open by now
  }
  EXPECT_EQ(count_descriptors(), before);
  probe.expect_whole();
}

TEST(Close, ManyConnectionsAtOnceShareThePages) {
  auto [host, nic] = OwnNic();
  PoolProbe probe(nic);
  apply_settings(PoolProbe::make_settings(48));
  {
    const base::LogCapture log;
    std::vector<ConnectedPair> connections;
    for (int i = 0; i < 8; ++i) connections.push_back(connect_here(nic, nic, true));
    EXPECT_FALSE(log.lines_of(base::LogLevel::kInfo).empty())
        << "the region is too small for all, which is said";
    const Transfer transfer = make_mixture(20);
    std::vector<std::unique_ptr<SendingSide>> senders;
    std::vector<std::unique_ptr<ReceivingSide>> receivers;
    for (auto& connection : connections) {
      senders.push_back(std::make_unique<SendingSide>(*connection.sender, nic, transfer));
      receivers.push_back(std::make_unique<ReceivingSide>(connection.receiving, nic, transfer));
    }
    EXPECT_TRUE(poll_until([&] {
      size_t finished = 0;
      for (size_t i = 0; i < connections.size(); ++i)
        finished += (senders[i]->step() ? 1 : 0) + (receivers[i]->step() ? 1 : 0);
      return finished == 2 * connections.size();
    }));
    for (const auto& receiver : receivers) EXPECT_EQ(receiver->problem(), "");
  }
  probe.expect_whole();
}

TEST(Close, ASecondSetOfConnectionsAfterTheFirst) {
  Host host;
  for (int round = 0; round < 3; ++round) {
    apply_settings({{"VERBENA_PAGE_BYTES", round == 1 ? "4k" : "64k"}});
    const Nic& nic = host.nic(2);
    ConnectedPair connection = connect_here(nic, nic, true);
    expect_transfer_here(connection, nic, nic, make_mixture(40));
  }
}

}  // namespace
}  // namespace verbena::transport
