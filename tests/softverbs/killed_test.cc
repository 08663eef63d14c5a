#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "fixture.h"

// What is left of a killed process.
namespace verbena::softverbs_test {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kTimeoutMs = 100;

int64_t count_ms_since(Clock::time_point start) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - start).count();
}

TEST(KilledTest, WaitingSendsFailWhenThePeerIsKilled) {
  Child child([](int socket) {
    auto [node, pair] = Connected(socket);
    pause();
  });
  auto [node, memory, pair] = ConnectedMemory(child.socket(), 64);
  for (uint64_t i = 0; i < 4; ++i)
    ASSERT_EQ(Send(IBV_WR_SEND, i).from(memory, 0, 8).post(pair), 0);  // no receive
  child.kill();
  const auto completions = node.wait_completions(4);
  EXPECT_EQ(completions[0].status, IBV_WC_RETRY_EXC_ERR);
  for (size_t i = 1; i < 4; ++i) EXPECT_EQ(completions[i].status, IBV_WC_WR_FLUSH_ERR);
}

// An application may take its completions of earlier requests and end before.
TEST(KilledTest, LaterPostsToAKilledPeerFailAfterATimeout) {
  Child child([](int socket) {
    auto [node, memory, pair] = ConnectedMemory(socket, 64);
    tell(socket, memory.remote());
    pause();
  });
  auto [node, memory, pair] = ConnectedMemory(child.socket(), 64);
  const auto remote = hear<RemoteMemory>(child.socket());
  child.kill();
  const auto start = Clock::now();
  ASSERT_EQ(Send(IBV_WR_RDMA_WRITE, 1, 0).from(memory, 0, 8).to(remote).post(pair), 0);
  EXPECT_EQ(node.wait_completion().status, IBV_WC_RETRY_EXC_ERR);
  EXPECT_EQ(pair.query_state(), IBV_QPS_ERR);
  EXPECT_GE(count_ms_since(start), kTimeoutMs);
}

// While the kernel frees its memory, a process is not dead yet, and copies to it fail.
TEST(KilledTest, PostsToADyingPeerFailAfterATimeout) {
  Child child([](int socket) {
    auto [node, memory, pair] = ConnectedMemory(socket, 64);
    const std::vector<char> much(256 << 20, 1);
    tell(socket, memory.remote());
    pause();
  });
  auto [node, memory, pair] = ConnectedMemory(child.socket(), 64);
  const auto remote = hear<RemoteMemory>(child.socket());
  ::kill(child.pid(), SIGKILL);
  ibv_wc_status status = IBV_WC_SUCCESS;
  auto start = Clock::now();
  while (status == IBV_WC_SUCCESS) {
    start = Clock::now();
    ASSERT_EQ(Send(IBV_WR_RDMA_WRITE, 1, IBV_SEND_SIGNALED).from(memory, 0, 8).to(remote).post(pair), 0);
    status = node.wait_completion().status;
  }
  EXPECT_EQ(status, IBV_WC_RETRY_EXC_ERR);
  EXPECT_GE(count_ms_since(start), kTimeoutMs);
  child.kill();
}

// The peer is not ready and connected to another queue pair in turn.
TEST(KilledTest, APeerThatServesAnotherEndsTheRequest) {
  Node node;
  Buffer memory(node, 64);
  QueuePair mine(node), server(node), other(node);
  meet(mine, server);
  server.to_state(IBV_QPS_ERR);
  std::atomic<bool> is_over{false};
  std::thread owner([&] {
    while (!is_over) {
      server.to_state(IBV_QPS_RESET);
      server.to_init();
      usleep(20000);
      server.to_ready_to_receive(other.address());
      usleep(20000);
    }
  });
  EXPECT_EQ(Send(IBV_WR_RDMA_WRITE, 1).from(memory, 0, 8).to(memory.address(), memory.mr()->rkey).post(mine),
            0);
  EXPECT_EQ(node.wait_completion().status, IBV_WC_RETRY_EXC_ERR);
  is_over = true;
  owner.join();
}

// A process that has seen many others has neither their descriptors nor their memory.
TEST(KilledTest, DescriptorsOfKilledPeersAreClosed) {
  const auto count_descriptors = [] {
    const std::filesystem::directory_iterator all("/proc/self/fd");
    return std::distance(begin(all), end(all));
  };
  std::vector<std::unique_ptr<Child>> visitors;  // before this process has threads
  for (int i = 0; i < 11; ++i) {
    visitors.push_back(std::make_unique<Child>([](int socket) {
      hear<bool>(socket);
      auto [node, pair] = Connected(socket);
      pause();
    }));
  }
  Node node;
  const auto visit = [&](Child& visitor) {
    tell(visitor.socket(), true);
    Buffer memory(node, 64);
    QueuePair pair(node);
    meet(visitor.socket(), pair);
    EXPECT_EQ(Send(IBV_WR_RDMA_WRITE, 1, 0).from(memory, 0, 8).to(memory.address(), 1).post(pair), 0);
    EXPECT_NE(node.wait_completion().status, IBV_WC_SUCCESS);
    visitor.kill();
  };
  visit(*visitors.front());  // from now on there is a thread that watches peers
  const auto before = count_descriptors();
  for (size_t i = 1; i < visitors.size() && !HasFailure(); ++i) visit(*visitors[i]);
  const auto deadline = Clock::now() + std::chrono::seconds(60);
  while (count_descriptors() > before && Clock::now() < deadline) sched_yield();
  EXPECT_LE(count_descriptors(), before);
}

// Senders are killed at random moments while they send into one shared queue. Whatever they were doing, the
// receiver gets every page of its queue back, each exactly once, and the next sender works.
TEST(KilledTest, KilledSendersLeaveNothingBehind) {
  constexpr uint64_t kPages = 32;
  constexpr size_t kPageBytes = 2048;
  constexpr int kRounds = 25;
  std::vector<std::unique_ptr<Child>> senders;
  for (int round = 0; round < kRounds; ++round) {
    senders.push_back(std::make_unique<Child>([](int socket) {
      hear<bool>(socket);
      auto [node, memory, pair] = ConnectedMemory(socket, kPageBytes);
      for (;;) {
        if (Send(IBV_WR_SEND, 1).from(memory, 0, kPageBytes).post(pair) != 0) sched_yield();
        ibv_wc wc{};
        ibv_poll_cq(node.cq, 1, &wc);
      }
    }));
  }
  Node node;
  Buffer memory(node, kPages * kPageBytes);
  ibv_srq_init_attr init{};
  init.attr = {kPages, 1, 0};
  ibv_srq* srq = ibv_create_srq(node.pd, &init);
  std::vector<bool> is_posted(kPages, true);
  for (uint64_t i = 0; i < kPages; ++i) ASSERT_EQ(post_shared(srq, i, memory, i * kPageBytes, kPageBytes), 0);
  uint64_t messages = 0;
  const auto poll_once = [&](bool repost) {
    ibv_wc wc{};
    if (ibv_poll_cq(node.cq, 1, &wc) != 1) return false;
    EXPECT_LT(wc.wr_id, kPages);
    EXPECT_TRUE(is_posted[wc.wr_id]) << "reported twice: " << wc.wr_id;
    is_posted[wc.wr_id] = false;
    messages += wc.status == IBV_WC_SUCCESS ? 1u : 0u;
    if (!repost) return true;
    is_posted[wc.wr_id] = true;
    EXPECT_EQ(post_shared(srq, wc.wr_id, memory, wc.wr_id * kPageBytes, kPageBytes), 0);
    return true;
  };
  for (int round = 0; round < kRounds; ++round) {
    Child& sender = *senders[static_cast<size_t>(round)];
    QpOptions options;
    options.srq = srq;
    QueuePair pair(node, options);
    tell(sender.socket(), true);
    meet(sender.socket(), pair);
    const auto start = Clock::now();
    const uint64_t before = messages;
    while (count_ms_since(start) < 5 + round % 7 || (messages == before && count_ms_since(start) < 10000)) {
      poll_once(true);
    }
    EXPECT_GT(messages, before) << "round " << round;
    sender.kill();
    ASSERT_EQ(pair.to_state(IBV_QPS_ERR), 0);
    while (poll_once(true)) {
    }
  }
  // All pages are posted again: a last sender can fill each of them, and only those.
  EXPECT_EQ(std::count(is_posted.begin(), is_posted.end(), true), static_cast<ptrdiff_t>(kPages));
  QpOptions options;
  options.srq = srq;
  {
    QueuePair receiver(node, options);
    Node sender_node;
    Buffer source(sender_node, kPageBytes);
    QueuePair sender(sender_node);
    receiver.connect(sender.address());
    sender.connect(receiver.address());
    for (uint64_t i = 0; i < kPages; ++i)
      ASSERT_EQ(Send(IBV_WR_SEND, i, 0).from(source, 0, kPageBytes).post(sender), 0);
    for (const ibv_wc& wc : node.wait_completions(kPages)) {
      EXPECT_TRUE(is_posted[wc.wr_id]);
      is_posted[wc.wr_id] = false;
    }
  }
  EXPECT_EQ(ibv_destroy_srq(srq), 0);
}

TEST(KilledTest, SlotOfAKilledProcessIsUsedAgain) {
  std::vector<uint32_t> slots;
  std::vector<std::unique_ptr<Child>> children;
  for (int i = 0; i < 3; ++i) {
    children.push_back(std::make_unique<Child>([](int socket) {
      Node node;
      QueuePair pair(node);
      tell(socket, pair.qp->qp_num);
      pause();
    }));
    slots.push_back(hear<uint32_t>(children.back()->socket()) >> 14);
    children.back()->kill();
  }
  EXPECT_EQ(slots[0], slots[1]);
  EXPECT_EQ(slots[1], slots[2]);
  Node last;  // takes away what they left
}

TEST(KilledTest, WhatAKilledJobLeavesIsRemovedByTheNext) {
  const std::string job = "killed-" + std::to_string(getpid());
  const auto exists = [&job] {
    for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
      if (entry.path().string().ends_with(job)) return true;
    }
    return false;
  };
  Child child([&job](int socket) {
    setenv("SOFTVERBS_JOB", job.c_str(), 1);
    Node node;
    tell(socket, true);
    pause();
  });
  hear<bool>(child.socket());
  EXPECT_TRUE(exists());
  child.kill();
  Child next([](int) { const Node node; });
  next.join();
  EXPECT_FALSE(exists());
}

TEST(KilledTest, ExitInTheMiddleOfALargeWriteEndsTheQueuePair) {
  constexpr size_t kBytes = 64 << 20;
  Child child([](int socket) {
    auto [node, memory, pair] = ConnectedMemory(socket, kBytes);
    tell(socket, memory.remote());
    pause();
  });
  auto [node, memory, pair] = ConnectedMemory(child.socket(), kBytes);
  const auto remote = hear<RemoteMemory>(child.socket());
  for (uint64_t i = 0; i < 32; ++i) {
    ASSERT_EQ(Send(IBV_WR_RDMA_WRITE, i).from(memory, 0, kBytes).to(remote).post(pair), 0);
  }
  node.wait_completion();
  child.kill();
  bool has_failed = false;
  for (const ibv_wc& wc : node.wait_completions(31)) {
    EXPECT_FALSE(has_failed && wc.status == IBV_WC_SUCCESS);
    if (wc.status == IBV_WC_SUCCESS) continue;
    EXPECT_EQ(wc.status, has_failed ? IBV_WC_WR_FLUSH_ERR : IBV_WC_RETRY_EXC_ERR);
    has_failed = true;
  }
  EXPECT_TRUE(has_failed);
}

}  // namespace
}  // namespace verbena::softverbs_test
