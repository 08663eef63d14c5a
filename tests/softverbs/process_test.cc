#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>

#include "fixture.h"

// Two processes on one host, and what is left of a killed one.
namespace verbena::softverbs_test {
namespace {

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

// Makes the kernel refuse copies from other processes, as some containers do.
bool forbid_copies() {
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter{std::size(program), program};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

TEST(ProcessTest, RefusedCopiesFailTheConnection) {
  Child owner([](int socket) {
    Node node;
    QueuePair pair(node);
    tell(socket, pair.address());
    hear<bool>(socket);
  });
  const auto address = hear<Address>(owner.socket());
  Child refused([&](int) {
    ASSERT_TRUE(forbid_copies());
    Node node;
    QueuePair pair(node);
    EXPECT_EQ(pair.to_init(), 0);
    ::testing::internal::CaptureStderr();
    EXPECT_EQ(pair.to_ready_to_receive(address), EPERM);
    const std::string said = ::testing::internal::GetCapturedStderr();
    EXPECT_NE(said.find("ptrace_scope"), std::string::npos) << said;
  });
  refused.join();
  tell(owner.socket(), true);
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
