#include <fcntl.h>
#include <poll.h>

#include <atomic>
#include <cerrno>
#include <thread>

#include "fixture.h"

// Completion channels, acknowledgements, shared receive queues.
namespace verbena::softverbs_test {
namespace {

NodeOptions with_channel() {
  NodeOptions options;
  options.with_channel = true;
  return options;
}

bool is_readable(int fd, int timeout_ms) {
  pollfd ready{fd, POLLIN, 0};
  return poll(&ready, 1, timeout_ms) == 1;
}

class EventTest : public ::testing::Test {
 protected:
  void SetUp() override { pair.connect(pair.address()); }
  void write(unsigned flags = IBV_SEND_SIGNALED) {
    ASSERT_EQ(Send(IBV_WR_RDMA_WRITE, 1, flags).from(buffer, 0, 8).to(buffer.remote(64)).post(pair), 0);
  }
  void take_event() {
    ibv_cq* cq = nullptr;
    void* context = nullptr;
    ASSERT_EQ(ibv_get_cq_event(node.channel, &cq, &context), 0);
    EXPECT_EQ(cq, node.cq);
    EXPECT_EQ(context, &node);
    ibv_ack_cq_events(cq, 1);
  }

  Node node{with_channel()};
  Buffer buffer{node, 4096};
  QueuePair pair{node};
};

TEST_F(EventTest, OneEventForEachTimeItIsArmed) {
  write();
  EXPECT_FALSE(is_readable(node.channel->fd, 0)) << "never armed";
  ASSERT_EQ(ibv_req_notify_cq(node.cq, 0), 0);
  EXPECT_FALSE(is_readable(node.channel->fd, 0)) << "what is already there gives no event";
  write();
  write();
  ASSERT_TRUE(is_readable(node.channel->fd, 1000));
  take_event();
  EXPECT_FALSE(is_readable(node.channel->fd, 0));
  node.wait_completions(3);
}

TEST_F(EventTest, SolicitedOnly) {
  ASSERT_EQ(pair.post_receive(1, buffer, 0, 64), 0);
  ASSERT_EQ(pair.post_receive(2, buffer, 0, 64), 0);
  ASSERT_EQ(ibv_req_notify_cq(node.cq, 1), 0);
  ASSERT_EQ(Send(IBV_WR_SEND, 3).from(buffer, 100, 8).post(pair), 0);
  EXPECT_FALSE(is_readable(node.channel->fd, 0));
  ASSERT_EQ(Send(IBV_WR_SEND, 4, IBV_SEND_SIGNALED | IBV_SEND_SOLICITED).from(buffer, 100, 8).post(pair), 0);
  ASSERT_TRUE(is_readable(node.channel->fd, 1000));
  take_event();
  node.wait_completions(4);
}

TEST_F(EventTest, EmptyChannelDoesNotBlockWhenAskedNotTo) {
  fcntl(node.channel->fd, F_SETFL, O_NONBLOCK);
  ibv_cq* cq = nullptr;
  void* context = nullptr;
  EXPECT_EQ(ibv_get_cq_event(node.channel, &cq, &context), -1);
  EXPECT_EQ(errno, EAGAIN);
}

TEST_F(EventTest, EventWakesASleeper) {
  ASSERT_EQ(ibv_req_notify_cq(node.cq, 0), 0);
  std::thread sleeper([this] { take_event(); });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  write();
  sleeper.join();
  node.wait_completion();
}

TEST_F(EventTest, DestroyWaitsForTheAcknowledgement) {
  ibv_cq* cq = ibv_create_cq(node.context, 4, nullptr, node.channel, 0);
  ibv_qp_init_attr init{};
  init.send_cq = init.recv_cq = cq;
  init.cap = {4, 4, 1, 1, 0};
  init.qp_type = IBV_QPT_RC;
  ibv_qp* qp = ibv_create_qp(node.pd, &init);
  ASSERT_NE(qp, nullptr);
  ASSERT_EQ(ibv_req_notify_cq(cq, 0), 0);
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_INIT;
  attributes.port_num = 1;
  ASSERT_EQ(
      ibv_modify_qp(qp, &attributes, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS),
      0);
  ibv_recv_wr receive{}, *bad = nullptr;
  ASSERT_EQ(ibv_post_recv(qp, &receive, &bad), 0);
  attributes.qp_state = IBV_QPS_ERR;
  ASSERT_EQ(ibv_modify_qp(qp, &attributes, IBV_QP_STATE), 0);  // flushes the receive
  ibv_cq* reported = nullptr;
  void* context = nullptr;
  ASSERT_EQ(ibv_get_cq_event(node.channel, &reported, &context), 0);
  ASSERT_EQ(reported, cq);
  ASSERT_EQ(ibv_destroy_qp(qp), 0);
  std::atomic<bool> is_acknowledged{false};
  std::thread acknowledger([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    is_acknowledged = true;
    ibv_ack_cq_events(cq, 1);
  });
  EXPECT_EQ(ibv_destroy_cq(cq), 0);
  EXPECT_TRUE(is_acknowledged);
  acknowledger.join();
}

class SharedReceiveTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ibv_srq_init_attr init{};
    init.attr = {64, 1, 0};
    srq = ibv_create_srq(node.pd, &init);
    ASSERT_NE(srq, nullptr);
  }
  void TearDown() override { EXPECT_EQ(ibv_destroy_srq(srq), 0); }
  Node node;
  Buffer source{node, 4096}, pages{node, 64 * 64};
  ibv_srq* srq = nullptr;
};

TEST_F(SharedReceiveTest, SeveralQueuePairsDrawFromOne) {
  QpOptions options;
  options.srq = srq;
  QueuePair first(node, options), second(node, options);
  first.connect(first.address());
  second.connect(second.address());
  for (uint64_t i = 0; i < 4; ++i) ASSERT_EQ(post_shared(srq, 100 + i, pages, i * 64, 64), 0);
  source.fill(2);
  ASSERT_EQ(Send(IBV_WR_SEND, 1, 0).from(source, 0, 64).post(first), 0);
  ASSERT_EQ(Send(IBV_WR_SEND, 2, 0).from(source, 0, 64).post(second), 0);
  const auto received = node.wait_completions(2);
  EXPECT_EQ(received[0].wr_id, 100u);
  EXPECT_EQ(received[0].qp_num, first.qp->qp_num);
  EXPECT_EQ(received[1].wr_id, 101u);
  EXPECT_EQ(received[1].qp_num, second.qp->qp_num);
  EXPECT_EQ(ibv_destroy_srq(srq), EBUSY);
}

TEST_F(SharedReceiveTest, LimitAndErrorAreEvents) {
  QpOptions options;
  options.srq = srq;
  QueuePair pair(node, options);
  pair.connect(pair.address());
  for (uint64_t i = 0; i < 4; ++i) ASSERT_EQ(post_shared(srq, i, pages, i * 64, 64), 0);
  ibv_srq_attr limit{};
  limit.srq_limit = 3;
  ASSERT_EQ(ibv_modify_srq(srq, &limit, IBV_SRQ_LIMIT), 0);
  ASSERT_EQ(Send(IBV_WR_SEND, 1, 0).from(source, 0, 64).post(pair), 0);
  EXPECT_FALSE(is_readable(node.context->async_fd, 0)) << "three are left, which is not below the limit";
  ASSERT_EQ(Send(IBV_WR_SEND, 1, 0).from(source, 0, 64).post(pair), 0);
  ibv_async_event event{};
  ASSERT_TRUE(is_readable(node.context->async_fd, 1000));
  ASSERT_EQ(ibv_get_async_event(node.context, &event), 0);
  EXPECT_EQ(event.event_type, IBV_EVENT_SRQ_LIMIT_REACHED);
  EXPECT_EQ(event.element.srq, srq);
  ibv_ack_async_event(&event);
  ASSERT_EQ(ibv_query_srq(srq, &limit), 0);
  EXPECT_EQ(limit.srq_limit, 0u) << "an event disarms it";
  ASSERT_EQ(pair.to_state(IBV_QPS_ERR), 0);
  ASSERT_EQ(ibv_get_async_event(node.context, &event), 0);
  EXPECT_EQ(event.event_type, IBV_EVENT_QP_LAST_WQE_REACHED);
  ibv_ack_async_event(&event);
  node.wait_completions(2);
}

TEST_F(SharedReceiveTest, FullQueueRefuses) {
  for (uint64_t i = 0; i < 64; ++i) ASSERT_EQ(post_shared(srq, i, pages, 0, 64), 0);
  EXPECT_EQ(post_shared(srq, 64, pages, 0, 64), ENOMEM);
}

}  // namespace
}  // namespace verbena::softverbs_test
