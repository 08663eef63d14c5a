#include <cstdlib>
#include <thread>

#include "fixture.h"

// What fails, how it is reported at both ends, and what is flushed.
namespace verbena::softverbs_test {
namespace {

class FaultTest : public ::testing::Test, protected TwoNodes {
 protected:
  FaultTest() : TwoNodes(8192) {}
  // Expects that this request fails so at the sender, and takes the sender's queue pair down.
  void expect_failure(Send send, ibv_wc_status status) {
    ASSERT_EQ(send.post(*left), 0);
    const ibv_wc wc = left_node.wait_completion();
    EXPECT_EQ(wc.status, status) << ibv_wc_status_str(wc.status);
    EXPECT_EQ(left->query_state(), IBV_QPS_ERR);
  }
  void expect_async(ibv_context* context, ibv_event_type type, const void* element) {
    ibv_async_event event{};
    ASSERT_EQ(ibv_get_async_event(context, &event), 0);
    EXPECT_EQ(event.event_type, type) << ibv_event_type_str(event.event_type);
    EXPECT_EQ(event.element.qp, element);
    ibv_ack_async_event(&event);
  }
  // Unsignaled: failures are reported nevertheless.
  Send write(size_t bytes) { return TwoNodes::write(1, bytes, 0); }
};

// What a replay goes by: the packets of what was carried out, also once both ends have stopped.
TEST_F(FaultTest, AQueryTellsHowManyPacketsWereCarriedOut) {
  connect();
  const auto query = [](const QueuePair& pair) {
    ibv_qp_attr attributes{};
    ibv_qp_init_attr init{};
    EXPECT_EQ(ibv_query_qp(pair.qp, &attributes, IBV_QP_RQ_PSN, &init), 0);
    return attributes.rq_psn;
  };
  const uint32_t first = query(*right);
  for (const size_t bytes : {0, 1, 4096, 4097, 8192}) {  // 1 + 1 + 1 + 2 + 2 of 4096 bytes
    Send send = write(bytes);
    send.request.send_flags = IBV_SEND_SIGNALED;
    ASSERT_EQ(send.run(*left), IBV_WC_SUCCESS);
  }
  ASSERT_EQ(Send(IBV_WR_RDMA_READ, 2).from(source, 0, 5000).to(target.remote()).post(*left),
            0);  // 2
  Send add(IBV_WR_ATOMIC_FETCH_AND_ADD, 3);
  ASSERT_EQ(add.from(source, 0, 8).add(1, {target.address(), target.mr()->rkey}).post(*left), 0);  // 1
  for (const ibv_wc& wc : left_node.wait_completions(2)) ASSERT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_EQ(right->to_state(IBV_QPS_ERR), 0);
  EXPECT_EQ((query(*right) - first) & 0xffffff, 10U);
  EXPECT_EQ(query(*left), first) << "nothing was asked of it";
  expect_failure(write(64), IBV_WC_RETRY_EXC_ERR);
  EXPECT_EQ((query(*right) - first) & 0xffffff, 10U) << "what failed is not counted";
}

// As the manual page of ibv_poll_cq has it: who goes by the rest on softverbs would fail on a NIC.
TEST_F(FaultTest, AFailedCompletionTellsNoMoreThanItMust) {
  connect();
  ASSERT_EQ(right->post_receive(5, target, 0, 100), 0);
  Send send = Send(IBV_WR_SEND_WITH_IMM, 7).from(source, 0, 101).with_immediate(1);
  ASSERT_EQ(send.post(*left), 0);
  const ibv_wc sent = left_node.wait_completion(), received = right_node.wait_completion();
  EXPECT_EQ(sent.wr_id, 7U);
  EXPECT_EQ(sent.qp_num, left->qp->qp_num);
  EXPECT_EQ(received.wr_id, 5U);
  EXPECT_EQ(received.qp_num, right->qp->qp_num);
  for (const ibv_wc& wc : {sent, received}) {
    EXPECT_NE(wc.status, IBV_WC_SUCCESS);
    EXPECT_NE(wc.opcode, IBV_WC_SEND);
    EXPECT_NE(wc.opcode, IBV_WC_RECV);
    EXPECT_GT(wc.byte_len, 1U << 31);
  }
}

// Packets of one length end up at a queue pair that knows another one.
TEST_F(FaultTest, PathMtusThatDiffer) {
  if (getenv("SOFTVERBS_FORCE_WIRE") != nullptr) GTEST_SKIP() << "frames between hosts have no packets";
  for (const bool is_shorter_here : {false, true}) {
    for (const bool reads : {false, true}) {
      left = std::make_unique<QueuePair>(left_node);
      right = std::make_unique<QueuePair>(right_node);
      const ibv_mtu ours = is_shorter_here ? IBV_MTU_1024 : IBV_MTU_4096,
                    theirs = is_shorter_here ? IBV_MTU_4096 : IBV_MTU_1024;
      ASSERT_EQ(left->to_init() | right->to_init(), 0);
      ASSERT_EQ(left->to_ready_to_receive(right->address(), ours), 0);
      ASSERT_EQ(right->to_ready_to_receive(left->address(), theirs), 0);
      ASSERT_EQ(left->to_ready_to_send() | right->to_ready_to_send(), 0);
      const auto request = [&](size_t bytes) {
        Send send(reads ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE, 1);
        send.from(source, 0, bytes).to(target.remote());
        return send;
      };
      Send single = request(1024);
      ASSERT_EQ(single.run(*left), IBV_WC_SUCCESS) << "one packet";
      expect_failure(request(1025), IBV_WC_REM_INV_REQ_ERR);
      expect_async(right_node.context, IBV_EVENT_QP_REQ_ERR, right->qp);
    }
  }
}

TEST_F(FaultTest, UnknownRemoteKey) {
  connect();
  Send send = write(64);
  send.request.wr.rdma.rkey ^= 1u << 20;
  expect_failure(send, IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(right->query_state(), IBV_QPS_ERR);
  expect_async(right_node.context, IBV_EVENT_QP_ACCESS_ERR, right->qp);
}

TEST_F(FaultTest, RemoteRange) {
  for (int64_t shift : {-1, 1}) {
    connect();
    Send send = write(8192);
    send.request.wr.rdma.remote_addr += static_cast<uint64_t>(shift);
    expect_failure(send, IBV_WC_REM_ACCESS_ERR);
    expect_async(right_node.context, IBV_EVENT_QP_ACCESS_ERR, right->qp);
  }
}

TEST_F(FaultTest, RemoteMemoryWithoutPermission) {
  Buffer read_only(right_node, 64, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
  connect();
  Send send = write(64);
  expect_failure(send.to(read_only.remote()), IBV_WC_REM_ACCESS_ERR);
  expect_async(right_node.context, IBV_EVENT_QP_ACCESS_ERR, right->qp);
}

TEST_F(FaultTest, QueuePairWithoutPermission) {
  connect({.access = IBV_ACCESS_REMOTE_READ});
  expect_failure(write(64), IBV_WC_REM_ACCESS_ERR);
  expect_async(right_node.context, IBV_EVENT_QP_ACCESS_ERR, right->qp);
}

TEST_F(FaultTest, RemoteMemoryOfAnotherDomain) {
  Node stranger;
  Buffer other(stranger, 64);
  connect();
  Send send = write(64);
  expect_failure(send.to(other.remote()), IBV_WC_REM_ACCESS_ERR);
  expect_async(right_node.context, IBV_EVENT_QP_ACCESS_ERR, right->qp);
}

TEST_F(FaultTest, DeregisteredRemoteMemory) {
  Buffer gone(right_node, 64);
  const RemoteMemory memory{gone.address(), gone.mr()->rkey};
  gone.drop_mr();
  connect();
  Send send = write(64);
  expect_failure(send.to(memory), IBV_WC_REM_ACCESS_ERR);
  expect_async(right_node.context, IBV_EVENT_QP_ACCESS_ERR, right->qp);
}

TEST_F(FaultTest, LocalKey) {
  connect();
  Send send = write(64);
  send.sges[0].lkey ^= 1u << 20;
  expect_failure(send, IBV_WC_LOC_PROT_ERR);
  EXPECT_EQ(right->query_state(), IBV_QPS_RTS) << "the peer never heard of it";
}

TEST_F(FaultTest, ReceiveTooShort) {
  connect();
  ASSERT_EQ(right->post_receive(5, target, 0, 100), 0);
  ASSERT_EQ(right->post_receive(6, target, 0, 100), 0);
  expect_failure(Send(IBV_WR_SEND, 1).from(source, 0, 101), IBV_WC_REM_INV_REQ_ERR);
  const auto completions = right_node.wait_completions(2);
  EXPECT_EQ(completions[0].status, IBV_WC_LOC_LEN_ERR);
  EXPECT_EQ(completions[0].wr_id, 5u);
  EXPECT_EQ(completions[1].status, IBV_WC_WR_FLUSH_ERR);
  EXPECT_EQ(completions[1].wr_id, 6u);
  expect_async(right_node.context, IBV_EVENT_QP_REQ_ERR, right->qp);
}

TEST_F(FaultTest, ReceiveWithWrongKey) {
  connect();
  Buffer gone(right_node, 64);
  ASSERT_EQ(right->post_receive(5, gone, 0, 64), 0);
  gone.drop_mr();
  expect_failure(Send(IBV_WR_SEND, 1).from(source, 0, 10), IBV_WC_REM_OP_ERR);
  EXPECT_EQ(right_node.wait_completion().status, IBV_WC_LOC_PROT_ERR);
  expect_async(right_node.context, IBV_EVENT_QP_FATAL, right->qp);
}

TEST_F(FaultTest, NoReceiveEndsTheRetries) {
  connect({.rnr_retry = 3, .min_rnr_timer = 1});
  expect_failure(Send(IBV_WR_SEND, 1).from(source, 0, 10), IBV_WC_RNR_RETRY_EXC_ERR);
  EXPECT_EQ(right->query_state(), IBV_QPS_RTS);
}

TEST_F(FaultTest, NoReceiveWaitsForEverWhenAskedTo) {
  connect({.rnr_retry = 7, .min_rnr_timer = 1});
  source.fill(1);
  ASSERT_EQ(Send(IBV_WR_SEND, 1).from(source, 0, 10).post(*left), 0);
  ASSERT_EQ(Send(IBV_WR_SEND, 2).from(source, 0, 20).post(*left), 0);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  ibv_wc wc{};
  EXPECT_EQ(ibv_poll_cq(left_node.cq, 1, &wc), 0);
  ASSERT_EQ(right->post_receive(5, target, 0, 100), 0);
  ASSERT_EQ(right->post_receive(6, target, 0, 100), 0);
  const auto received = right_node.wait_completions(2);
  EXPECT_EQ(received[0].byte_len, 10u);
  EXPECT_EQ(received[1].byte_len, 20u);
  EXPECT_EQ(left_node.wait_completions(2)[1].wr_id, 2u);
}

TEST_F(FaultTest, PeerThatIsNotReadyEndsTheRetries) {
  left = std::make_unique<QueuePair>(left_node, QpOptions{.timeout = 8, .retry_count = 2});
  right = std::make_unique<QueuePair>(right_node);
  EXPECT_EQ(right->to_init(), 0);
  left->connect(right->address());
  expect_failure(write(8), IBV_WC_RETRY_EXC_ERR);
}

TEST_F(FaultTest, UnreachableNumber) {
  left = std::make_unique<QueuePair>(left_node);
  left->connect({0xfffff0, left->address().gid});
  expect_failure(write(8), IBV_WC_RETRY_EXC_ERR);
}

TEST_F(FaultTest, ErrorStateFlushesInOrder) {
  connect();
  for (uint64_t i = 0; i < 5; ++i) ASSERT_EQ(left->post_receive(i, source, 0, 64), 0);
  for (uint64_t i = 10; i < 15; ++i)
    ASSERT_EQ(Send(IBV_WR_SEND, i).from(source, 0, 8).post(*left), 0);  // no receives
  ASSERT_EQ(left->to_state(IBV_QPS_ERR), 0);
  uint64_t next_receive = 0, next_send = 10;
  for (const ibv_wc& wc : left_node.wait_completions(10)) {
    EXPECT_EQ(wc.status, IBV_WC_WR_FLUSH_ERR);
    EXPECT_EQ(wc.wr_id, wc.wr_id < 10 ? next_receive++ : next_send++);
  }
  // Both kinds are still taken, and flushed at once.
  ASSERT_EQ(left->post_receive(20, source, 0, 64), 0);
  ASSERT_EQ(Send(IBV_WR_SEND, 21, 0).from(source, 0, 8).post(*left), 0);
  EXPECT_EQ(left_node.wait_completion().wr_id, 20u);
  EXPECT_EQ(left_node.wait_completion().wr_id, 21u);
}

TEST_F(FaultTest, RequestsBehindAFailureAreFlushed) {
  connect();
  std::vector<Send> chain;
  for (int i = 0; i < 3; ++i) chain.push_back(write(8));
  chain[1].request.wr.rdma.rkey = 0;
  for (size_t i = 0; i < 3; ++i) {
    chain[i].request.wr_id = i;
    chain[i].request.send_flags = IBV_SEND_SIGNALED;
  }
  ASSERT_EQ(post_together(*left, chain), 0);
  const auto completions = left_node.wait_completions(3);
  EXPECT_EQ(completions[0].status, IBV_WC_SUCCESS);
  EXPECT_EQ(completions[1].status, IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(completions[2].status, IBV_WC_WR_FLUSH_ERR);
  expect_async(right_node.context, IBV_EVENT_QP_ACCESS_ERR, right->qp);
}

TEST_F(FaultTest, ResetForgetsEverythingAndConnectsAgain) {
  connect();
  ASSERT_EQ(write(8).post(*left), 0);
  for (uint64_t i = 0; i < 5; ++i) ASSERT_EQ(left->post_receive(i, source, 0, 64), 0);
  for (QueuePair* qp : {left.get(), right.get()}) {
    ASSERT_EQ(qp->to_state(IBV_QPS_ERR), 0);
    ASSERT_EQ(qp->to_state(IBV_QPS_RESET), 0);
  }
  ibv_wc wc{};
  EXPECT_EQ(ibv_poll_cq(left_node.cq, 1, &wc), 0) << "completions of the life before";
  left->connect(right->address());
  right->connect(left->address());
  source.fill(9);
  Send send = write(100);
  send.request.send_flags = IBV_SEND_SIGNALED;
  ASSERT_EQ(send.run(*left), IBV_WC_SUCCESS);
  EXPECT_TRUE(target.matches(9, 100));
}

TEST_F(FaultTest, CompletionQueueOverrunIsAnEvent) {
  NodeOptions small;
  small.cq_entries = 4;
  Node node(small);
  Buffer buffer(node, 64);
  QueuePair loop(node);
  loop.connect(loop.address());
  for (uint64_t i = 0; i < 6; ++i) {
    ASSERT_EQ(Send(IBV_WR_RDMA_WRITE, i).from(buffer, 0, 8).to(buffer.remote(8)).post(loop), 0);
  }
  expect_async(node.context, IBV_EVENT_CQ_ERR, node.cq);
}

}  // namespace
}  // namespace verbena::softverbs_test
