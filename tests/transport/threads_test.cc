// Connections on threads of their own share devices, a bounce pool and an event thread, and no lock of ours
// on the data path. For the thread sanitizer above all.
#include <gtest/gtest.h>

#include <thread>

#include "transport/support/transfer.h"

namespace verbena::transport {
namespace {

constexpr int kThreads = 4;

Transfer make_transfer(int thread) {
  Transfer transfer;
  transfer.seed = static_cast<uint64_t>(thread);
  for (uint32_t i = 0; i < 150; ++i) {
    transfer.messages.push_back({.length_bytes = i * 701 % 60'000, .may_stage = i % 4 != 0});
  }
  return transfer;
}

// Each thread opens, uses and closes its connections while the others do the same.
TEST(Threads, ConnectionsDoNotDisturbOneAnother) {
  auto [host, nic] = OwnNic(2);
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&nic, thread] {
      for (int round = 0; round < 3; ++round) {
        ConnectedPair connection = connect_here(nic, nic, thread % 2 == 0);
        expect_transfer_here(connection, nic, nic, make_transfer(thread));
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

// The two ends of one connection on two threads, as two ranks of one process are.
TEST(Threads, TheEndsOfAConnectionRunOnTheirOwnThreads) {
  auto [host, nic] = OwnNic(2);
  for (int round = 0; round < 3; ++round) {
    ConnectedPair connection = connect_here(nic, nic, true);
    const Transfer transfer = make_transfer(round);
    SendingSide sender(*connection.sender, nic, transfer);
    ReceivingSide receiver(connection.receiving, nic, transfer);
    std::thread sending([&] {
      EXPECT_TRUE(poll_until([&] { return sender.step(); }));
      connection.sender.reset();
    });
    EXPECT_TRUE(poll_until([&] { return receiver.step(); }));
    sending.join();
    EXPECT_EQ(sender.status(), base::Status::kOk);
    EXPECT_EQ(receiver.status(), base::Status::kOk);
    EXPECT_EQ(receiver.problem(), "");
  }
}

}  // namespace
}  // namespace verbena::transport
