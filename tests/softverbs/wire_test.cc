#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <thread>

#include "fixture.h"
#include "wire_fixture.h"

namespace verbena::softverbs_test {
namespace {

constexpr size_t kBytes = 4 << 20;

// The far end's memory for one-sided requests; it waits for the message that everything is done.
void offer_memory(int socket) {
  Node node;
  QueuePair pair(node);
  Buffer memory(node, kBytes);
  memory.fill(3);
  meet(socket, pair);
  tell(socket, memory.remote());
  hear<bool>(socket);
  tell(socket, true);
}

void receive_numbers(int socket, int count, size_t bytes) {
  auto [node, memory, pair] = ConnectedMemory(socket, bytes * 16);
  for (size_t i = 0; i < 16; ++i) {
    ASSERT_EQ(pair.post_receive(i, memory, i * bytes, bytes), 0);
  }
  for (int i = 0; i < count; ++i) {
    const ibv_wc wc = node.wait_completion(60000);
    ASSERT_EQ(wc.status, IBV_WC_SUCCESS);
    ASSERT_EQ(wc.byte_len, bytes);
    ASSERT_EQ(wc.wr_id, static_cast<uint64_t>(i % 16)) << "in order";
    const uint8_t* at = memory.data() + wc.wr_id * bytes;
    for (size_t k = 0; k < bytes; ++k) ASSERT_EQ(at[k], static_cast<uint8_t>(i + k / 7)) << i << " " << k;
    pair.post_receive(wc.wr_id, memory, wc.wr_id * bytes, bytes);
  }
}

void send_numbers(int socket, int count, size_t bytes) {
  auto [node, memory, pair] = ConnectedMemory(socket, bytes * 4);
  for (int i = 0; i < count; ++i) {
    if (i >= 4) {
      ASSERT_EQ(node.wait_completion(60000).status, IBV_WC_SUCCESS);
    }
    const size_t offset = static_cast<size_t>(i % 4) * bytes;
    for (size_t k = 0; k < bytes; ++k) memory.data()[offset + k] = static_cast<uint8_t>(i + k / 7);
    ASSERT_EQ(Send(IBV_WR_SEND, static_cast<uint64_t>(i)).from(memory, offset, bytes).post(pair), 0);
  }
  for (const ibv_wc& wc : node.wait_completions(4, 60000)) ASSERT_EQ(wc.status, IBV_WC_SUCCESS);
}

TEST_F(WireTest, WritesReadsAndAtomicsReachTheOtherHost) {
  const auto far = start_far(offer_memory);
  auto [node, memory, pair] = ConnectedMemory(far->socket(), kBytes);
  const auto remote = hear<RemoteMemory>(far->socket());
  Send(IBV_WR_RDMA_READ, 1).from(memory, 0, kBytes).to(remote).post(pair);
  EXPECT_EQ(node.wait_completion().status, IBV_WC_SUCCESS);
  EXPECT_TRUE(memory.matches(3, kBytes));
  memory.fill(9);
  Send(IBV_WR_RDMA_WRITE, 2).from(memory, 0, kBytes).to(remote).post(pair);
  EXPECT_EQ(node.wait_completion().status, IBV_WC_SUCCESS);
  memory.fill(4);
  Send(IBV_WR_RDMA_READ, 3).from(memory, 0, kBytes).to(remote).post(pair);
  EXPECT_EQ(node.wait_completion().status, IBV_WC_SUCCESS);
  EXPECT_TRUE(memory.matches(9, kBytes));
  tell(far->socket(), true);
  hear<bool>(far->socket());
}

TEST_F(WireTest, LinkLocalGidsLeadThereToo) {
  const auto far = start_far([](int socket) {
    Node node;
    ibv_gid gid{};
    ibv_query_gid(node.context, 1, 0, &gid);
    QueuePair pair(node);
    tell(socket, Address{pair.qp->qp_num, gid});
    pair.connect(hear<Address>(socket));
    tell(socket, true);
    hear<bool>(socket);
  });
  Node node;
  ibv_gid gid{};
  ibv_query_gid(node.context, 1, 0, &gid);
  QueuePair pair(node);
  tell(far->socket(), Address{pair.qp->qp_num, gid});
  pair.connect(hear<Address>(far->socket()));
  hear<bool>(far->socket());
  Buffer memory(node, 64);
  Send(IBV_WR_RDMA_WRITE, 2).from(memory, 0, 0).to(0, 0).post(pair);
  EXPECT_EQ(node.wait_completion().status, IBV_WC_SUCCESS);
  tell(far->socket(), true);
}

TEST_F(WireTest, Ipv6) {
  use_v6 = true;
  const auto far = start_far([](int socket) { receive_numbers(socket, 40, 3000); });
  send_numbers(far->socket(), 40, 3000);
}

TEST_F(WireTest, ManySizesArriveWhole) {
  constexpr size_t kSizes[] = {1, 8, 9, 4096, 8191, 8200, 65536, 131073, 300001, 1 << 20};
  const auto far = start_far([&](int socket) {
    for (const size_t bytes : kSizes) receive_numbers(socket, 24, bytes);
  });
  for (const size_t bytes : kSizes) send_numbers(far->socket(), 24, bytes);
}

TEST_F(WireTest, LossDelayAndReorderingChangeNoByte) {
  network->set_weather({.loss_permille = 15, .late_permille = 30, .delay_us = 500});
  const auto far = start_far([&](int socket) {
    receive_numbers(socket, 60, 2000);
    receive_numbers(socket, 16, 400000);
  });
  send_numbers(far->socket(), 60, 2000);
  send_numbers(far->socket(), 16, 400000);
}

TEST_F(WireTest, ReceiverThatIsNotReadyIsWaitedFor) {
  const auto far = start_far([](int socket) {
    auto [node, memory, pair] = ConnectedMemory(socket, 400000);
    usleep(50000);
    for (uint64_t i = 0; i < 3; ++i) {
      pair.post_receive(i, memory, i * 100000, 100000);
      usleep(20000);
    }
    for (uint64_t i = 0; i < 3; ++i) {
      const ibv_wc wc = node.wait_completion();
      EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
      EXPECT_EQ(wc.wr_id, i);
    }
    EXPECT_TRUE(memory.matches(5, 300000));
    tell(socket, true);
  });
  Node node;
  QueuePair pair(node);
  Buffer memory(node, 400000);
  memory.fill(5);
  meet(far->socket(), pair);
  for (uint64_t i = 0; i < 3; ++i) Send(IBV_WR_SEND, i).from(memory, i * 100000, 100000).post(pair);
  for (const ibv_wc& wc : node.wait_completions(3)) EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  hear<bool>(far->socket());
}

TEST_F(WireTest, ReceiverThatNeverIsReadyEndsTheRequest) {
  const auto far = start_far(offer_memory);
  Node node;
  QueuePair pair(node, {.rnr_retry = 2});
  Buffer memory(node, 64);
  meet(far->socket(), pair);
  hear<RemoteMemory>(far->socket());
  Send(IBV_WR_SEND, 1).from(memory, 0, 64).post(pair);
  Send(IBV_WR_SEND, 2).from(memory, 0, 64).post(pair);
  EXPECT_EQ(node.wait_completion().status, IBV_WC_RNR_RETRY_EXC_ERR);
  EXPECT_EQ(node.wait_completion().status, IBV_WC_WR_FLUSH_ERR);
  EXPECT_EQ(pair.query_state(), IBV_QPS_ERR);
  tell(far->socket(), true);
  hear<bool>(far->socket());
}

TEST_F(WireTest, WrongKeyFailsBothEnds) {
  const auto far = start_far([](int socket) {
    auto [node, memory, pair] = ConnectedMemory(socket, 4096);
    pair.post_receive(7, memory, 0, 64);
    tell(socket, memory.remote());
    const ibv_wc wc = node.wait_completion();
    EXPECT_EQ(wc.status, IBV_WC_WR_FLUSH_ERR);
    EXPECT_EQ(wc.wr_id, 7u);
    EXPECT_EQ(pair.query_state(), IBV_QPS_ERR);
    tell(socket, true);
  });
  auto [node, memory, pair] = ConnectedMemory(far->socket(), 8192);
  const auto remote = hear<RemoteMemory>(far->socket());
  Send(IBV_WR_RDMA_WRITE, 1).from(memory, 0, 4096).to(remote).post(pair);
  Send(IBV_WR_RDMA_WRITE, 2).from(memory, 0, 4096).to(remote + 1).post(pair);
  Send(IBV_WR_RDMA_WRITE, 3).from(memory, 0, 4096).to(remote).post(pair);
  const auto completions = node.wait_completions(3);
  ASSERT_EQ(completions.size(), 3u);
  EXPECT_EQ(completions[0].status, IBV_WC_SUCCESS);
  EXPECT_EQ(completions[1].status, IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(completions[2].status, IBV_WC_WR_FLUSH_ERR);
  hear<bool>(far->socket());
}

// Writes without end until one fails.
ibv_wc_status write_until_failure(Node& node, QueuePair& pair, Buffer& memory, const RemoteMemory& remote,
                                  const std::function<void()>& after_some) {
  for (int i = 0;; ++i) {
    if (i == 8) after_some();
    Send(IBV_WR_RDMA_WRITE, 1).from(memory, 0, kBytes).to(remote).post(pair);
    const ibv_wc wc = node.wait_completion(60000);
    if (wc.status != IBV_WC_SUCCESS) return wc.status;
  }
}

// Not before a NIC's timeout: an application may take its earlier completions and end.
TEST_F(WireTest, KilledPeerEndsTheRequestAfterATimeout) {
  const auto far = start_far(offer_memory);
  auto [node, memory, pair] = ConnectedMemory(far->socket(), kBytes);
  const auto remote = hear<RemoteMemory>(far->socket());
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(write_until_failure(node, pair, memory, remote, [&] { far->kill(); }), IBV_WC_RETRY_EXC_ERR);
  EXPECT_EQ(pair.query_state(), IBV_QPS_ERR);
  EXPECT_GE(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(100));
}

TEST_F(WireTest, PulledCableEndsTheRequest) {
  const auto far = start_far(offer_memory);
  auto [node, memory, pair] = ConnectedMemory(far->socket(), kBytes);
  const auto remote = hear<RemoteMemory>(far->socket());
  EXPECT_EQ(write_until_failure(node, pair, memory, remote, [&] { network->pull_cable(true); }),
            IBV_WC_RETRY_EXC_ERR);
  tell(far->socket(), true);
  hear<bool>(far->socket());
}

TEST_F(WireTest, CableThatComesBackLosesNothing) {
  const auto far = start_far([](int socket) { receive_numbers(socket, 30, 200000); });
  std::thread hand([&] {
    usleep(30000);
    network->pull_cable(true);
    usleep(700000);
    network->pull_cable(false);
  });
  send_numbers(far->socket(), 30, 200000);
  hand.join();
}

TEST_F(WireTest, NewQueuePairsConnectAfterAFailure) {
  const auto far = start_far([](int socket) {
    offer_memory(socket);
    receive_numbers(socket, 8, 1000);
  });
  {
    auto [node, memory, pair] = ConnectedMemory(far->socket(), kBytes);
    const auto remote = hear<RemoteMemory>(far->socket());
    write_until_failure(node, pair, memory, remote, [&] { network->pull_cable(true); });
  }
  network->pull_cable(false);
  tell(far->socket(), true);
  hear<bool>(far->socket());
  send_numbers(far->socket(), 8, 1000);
}

// The memory goes first, then the queue pair; the next one uses the same connections.
TEST_F(WireTest, DestroyedWithTrafficUnderWay) {
  const auto far = start_far([](int socket) {
    offer_memory(socket);
    receive_numbers(socket, 20, 300000);
  });
  {
    auto [node, pair] = Connected(far->socket());
    const auto remote = hear<RemoteMemory>(far->socket());
    Buffer memory(node, kBytes);
    for (uint64_t k = 0; k < 20; ++k) {
      Send(IBV_WR_RDMA_WRITE, k).from(memory, 0, kBytes).to(remote).post(pair);
    }
    usleep(2000);
  }
  tell(far->socket(), true);
  hear<bool>(far->socket());
  send_numbers(far->socket(), 20, 300000);
}

}  // namespace
}  // namespace verbena::softverbs_test
