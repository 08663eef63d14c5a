#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "fixture.h"

// Two processes on one host, and what is left of a killed one.
namespace verbena::softverbs_test {
namespace {

using Clock = std::chrono::steady_clock;

int64_t count_ms_since(Clock::time_point start) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - start).count();
}

// Exchanges addresses and connects.
void meet(int socket, QueuePair& pair) {
  tell(socket, pair.address());
  pair.connect(hear<Address>(socket));
  tell(socket, true);
  hear<bool>(socket);
}

TEST(ProcessTest, SendWriteReadOverAllSizes) {
  constexpr size_t kBytes = 3 << 20;
  const size_t sizes[] = {0, 1, 8, 63, 64, 65, 512, 513, 4096, 65536, 300001, kBytes};
  Child child([&](int socket) {
    Node node;
    Buffer memory(node, kBytes);
    QueuePair pair(node);
    meet(socket, pair);
    tell(socket, RemoteMemory{memory.address(), memory.mr()->rkey});
    for (size_t bytes : sizes) {
      ASSERT_EQ(pair.post_receive(1, memory, 0, kBytes), 0);
      tell(socket, true);
      EXPECT_EQ(node.wait_completion().byte_len, bytes);
      EXPECT_TRUE(memory.matches(static_cast<uint8_t>(bytes + 1), bytes)) << "sent " << bytes;
      memset(memory.data(), 0, kBytes);
      ASSERT_EQ(pair.post_receive(2, memory, 0, 0), 0);
      tell(socket, true);
      const ibv_wc written = node.wait_completion();
      EXPECT_EQ(written.opcode, IBV_WC_RECV_RDMA_WITH_IMM);
      EXPECT_EQ(written.byte_len, bytes);
      EXPECT_TRUE(memory.matches(static_cast<uint8_t>(bytes + 2), bytes)) << "written " << bytes;
      memory.fill(static_cast<uint8_t>(bytes + 3));
      tell(socket, true);
      hear<bool>(socket);
    }
  });
  Node node;
  Buffer memory(node, kBytes);
  QueuePair pair(node);
  meet(child.socket(), pair);
  const auto remote = hear<RemoteMemory>(child.socket());
  for (size_t bytes : sizes) {
    hear<bool>(child.socket());
    memory.fill(static_cast<uint8_t>(bytes + 1));
    ASSERT_EQ(Send(IBV_WR_SEND, 1).from(memory, 0, bytes).post(pair), 0);
    EXPECT_EQ(node.wait_completion().status, IBV_WC_SUCCESS);
    hear<bool>(child.socket());
    memory.fill(static_cast<uint8_t>(bytes + 2));
    Send write(IBV_WR_RDMA_WRITE_WITH_IMM, 2);
    ASSERT_EQ(write.from(memory, 0, bytes).to(remote.address, remote.rkey).post(pair), 0);
    EXPECT_EQ(node.wait_completion().status, IBV_WC_SUCCESS);
    hear<bool>(child.socket());
    Send read(IBV_WR_RDMA_READ, 3);
    ASSERT_EQ(read.from(memory, 0, bytes).to(remote.address, remote.rkey).post(pair), 0);
    EXPECT_EQ(node.wait_completion().status, IBV_WC_SUCCESS);
    EXPECT_TRUE(memory.matches(static_cast<uint8_t>(bytes + 3), bytes)) << "read " << bytes;
    tell(child.socket(), true);
  }
}

TEST(ProcessTest, EventWakesTheOtherProcess) {
  NodeOptions options;
  options.with_channel = true;
  Child child([&](int socket) {
    Node node(options);
    Buffer memory(node, 64);
    QueuePair pair(node);
    meet(socket, pair);
    for (int round = 0; round < 5; ++round) {
      ASSERT_EQ(pair.post_receive(1, memory, 0, 64), 0);
      ASSERT_EQ(ibv_req_notify_cq(node.cq, 0), 0);
      tell(socket, true);
      ibv_cq* cq = nullptr;
      void* context = nullptr;
      ASSERT_EQ(ibv_get_cq_event(node.channel, &cq, &context), 0);
      ibv_ack_cq_events(cq, 1);
      node.wait_completion();
    }
  });
  Node node;
  Buffer memory(node, 64);
  QueuePair pair(node);
  meet(child.socket(), pair);
  for (int round = 0; round < 5; ++round) {
    hear<bool>(child.socket());
    usleep(1000);
    ASSERT_EQ(Send(IBV_WR_SEND, 1).from(memory, 0, 64).post(pair), 0);
    EXPECT_EQ(node.wait_completion().status, IBV_WC_SUCCESS);
  }
}

TEST(ProcessTest, RemoteFaultReachesItsOwner) {
  Child child([](int socket) {
    Node node;
    Buffer memory(node, 64);
    QueuePair pair(node);
    meet(socket, pair);
    ASSERT_EQ(pair.post_receive(4, memory, 0, 64), 0);
    tell(socket, true);
    ibv_async_event event{};
    ASSERT_EQ(ibv_get_async_event(node.context, &event), 0);
    EXPECT_EQ(event.event_type, IBV_EVENT_QP_ACCESS_ERR);
    EXPECT_EQ(event.element.qp, pair.qp);
    ibv_ack_async_event(&event);
    const ibv_wc wc = node.wait_completion();
    EXPECT_EQ(wc.status, IBV_WC_WR_FLUSH_ERR);
    EXPECT_EQ(wc.wr_id, 4u);
    EXPECT_EQ(pair.query_state(), IBV_QPS_ERR);
  });
  Node node;
  Buffer memory(node, 64);
  QueuePair pair(node);
  meet(child.socket(), pair);
  hear<bool>(child.socket());
  ASSERT_EQ(Send(IBV_WR_RDMA_WRITE, 1).from(memory, 0, 8).to(0x1234, 0x77).post(pair), 0);
  EXPECT_EQ(node.wait_completion().status, IBV_WC_REM_ACCESS_ERR);
}

// Unmapped behind the registration's back: the kernel's refusal becomes a completion, not a signal.
TEST(ProcessTest, VanishedRemotePages) {
  Child child([](int socket) {
    Node node;
    void* pages = mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ibv_mr* mr = ibv_reg_mr(node.pd, pages, 8192, kAllAccess);
    QueuePair pair(node);
    meet(socket, pair);
    munmap(pages, 8192);
    tell(socket, RemoteMemory{reinterpret_cast<uint64_t>(pages), mr->rkey});
    hear<bool>(socket);
    EXPECT_EQ(ibv_dereg_mr(mr), 0);
  });
  Node node;
  Buffer memory(node, 64);
  QueuePair pair(node);
  meet(child.socket(), pair);
  const auto remote = hear<RemoteMemory>(child.socket());
  ASSERT_EQ(Send(IBV_WR_RDMA_WRITE, 1).from(memory, 0, 8).to(remote.address, remote.rkey).post(pair), 0);
  EXPECT_EQ(node.wait_completion().status, IBV_WC_REM_OP_ERR);
  tell(child.socket(), true);
}

TEST(ProcessTest, WaitingSendsFailWhenThePeerIsKilled) {
  Child child([](int socket) {
    Node node;
    QueuePair pair(node);
    meet(socket, pair);
    pause();
  });
  Node node;
  Buffer memory(node, 64);
  QueuePair pair(node);
  meet(child.socket(), pair);
  for (uint64_t i = 0; i < 4; ++i)
    ASSERT_EQ(Send(IBV_WR_SEND, i).from(memory, 0, 8).post(pair), 0);  // no receive
  const auto start = Clock::now();
  child.kill();
  const auto completions = node.wait_completions(4, 1000);
  EXPECT_LT(count_ms_since(start), 500);
  EXPECT_EQ(completions[0].status, IBV_WC_RETRY_EXC_ERR);
  for (size_t i = 1; i < 4; ++i) EXPECT_EQ(completions[i].status, IBV_WC_WR_FLUSH_ERR);
}

TEST(ProcessTest, LaterPostsToAKilledPeerFail) {
  Child child([](int socket) {
    Node node;
    Buffer memory(node, 64);
    QueuePair pair(node);
    meet(socket, pair);
    tell(socket, RemoteMemory{memory.address(), memory.mr()->rkey});
    pause();
  });
  Node node;
  Buffer memory(node, 64);
  QueuePair pair(node);
  meet(child.socket(), pair);
  const auto remote = hear<RemoteMemory>(child.socket());
  child.kill();
  ASSERT_EQ(Send(IBV_WR_RDMA_WRITE, 1, 0).from(memory, 0, 8).to(remote.address, remote.rkey).post(pair), 0);
  EXPECT_EQ(node.wait_completion(1000).status, IBV_WC_RETRY_EXC_ERR);
  EXPECT_EQ(pair.query_state(), IBV_QPS_ERR);
}

// Senders are killed at random moments while they send into one shared queue. Whatever they were doing, the
// receiver gets every page of its queue back, each exactly once, and the next sender works.
TEST(ProcessTest, KilledSendersLeaveNothingBehind) {
  constexpr uint64_t kPages = 32;
  constexpr size_t kPageBytes = 2048;
  constexpr int kRounds = 25;
  std::vector<std::unique_ptr<Child>> senders;
  for (int round = 0; round < kRounds; ++round) {
    senders.push_back(std::make_unique<Child>([](int socket) {
      hear<bool>(socket);
      Node node;
      Buffer memory(node, kPageBytes);
      QueuePair pair(node);
      meet(socket, pair);
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

TEST(ProcessTest, SlotOfAKilledProcessIsUsedAgain) {
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

TEST(ProcessTest, ExitInTheMiddleOfALargeWriteEndsTheQueuePair) {
  constexpr size_t kBytes = 64 << 20;
  Child child([](int socket) {
    Node node;
    Buffer memory(node, kBytes);
    QueuePair pair(node);
    meet(socket, pair);
    tell(socket, RemoteMemory{memory.address(), memory.mr()->rkey});
    pause();
  });
  Node node;
  Buffer memory(node, kBytes);
  QueuePair pair(node);
  meet(child.socket(), pair);
  const auto remote = hear<RemoteMemory>(child.socket());
  for (uint64_t i = 0; i < 32; ++i) {
    ASSERT_EQ(Send(IBV_WR_RDMA_WRITE, i).from(memory, 0, kBytes).to(remote.address, remote.rkey).post(pair),
              0);
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

TEST(ProcessTest, OtherNetworkNamespace) {
  Child child([](int socket) {
    const bool is_elsewhere = unshare(CLONE_NEWNET) == 0;
    tell(socket, is_elsewhere);
    Node node;
    Buffer memory(node, 64);
    QueuePair pair(node);
    meet(socket, pair);
    ASSERT_EQ(pair.post_receive(1, memory, 0, 64), 0);
    EXPECT_EQ(node.wait_completion().byte_len, 8u);
  });
  const bool is_elsewhere = hear<bool>(child.socket());
  Node node;
  Buffer memory(node, 64);
  QueuePair pair(node);
  meet(child.socket(), pair);
  ASSERT_EQ(Send(IBV_WR_SEND, 1).from(memory, 0, 8).post(pair), 0);
  EXPECT_EQ(node.wait_completion().status, IBV_WC_SUCCESS);
  child.join();
  if (!is_elsewhere) GTEST_SKIP() << "no right to make a network namespace: both were in one";
}

}  // namespace
}  // namespace verbena::softverbs_test
