#include "fixture.h"

// Unreliable connections: what cannot be placed is lost, and the sender does not learn of it.
namespace verbena::softverbs_test {
namespace {

struct UnreliableTest : ::testing::Test {
  Node node;
  Buffer source{node, 4096}, target{node, 4096};
  QueuePair sender{node, {.type = IBV_QPT_UC}}, receiver{node, {.type = IBV_QPT_UC}};

  UnreliableTest() {
    sender.connect(receiver.address());
    receiver.connect(sender.address());
    source.fill(7);
  }

  Send make_write(uint64_t wr_id, size_t bytes, uint32_t rkey) {
    Send send(IBV_WR_RDMA_WRITE, wr_id);
    send.from(source, 0, bytes).to(target.address(), rkey);
    return send;
  }
  Send make_send(uint64_t wr_id, size_t bytes) {
    Send send(IBV_WR_SEND_WITH_IMM, wr_id);
    send.from(source, 0, bytes).with_immediate(99);
    return send;
  }
  void expect_sent(uint64_t wr_id) {
    const ibv_wc wc = node.wait_completion();
    EXPECT_EQ(wc.wr_id, wr_id);
    EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
    EXPECT_EQ(sender.query_state(), IBV_QPS_RTS);
    EXPECT_EQ(receiver.query_state(), IBV_QPS_RTS);
  }
};

TEST_F(UnreliableTest, WritesAndSendsArrive) {
  ASSERT_EQ(make_write(1, 4096, target.mr()->rkey).post(sender), 0);
  expect_sent(1);
  EXPECT_TRUE(target.matches(7, 4096));
  ASSERT_EQ(receiver.post_receive(2, target, 0, 4096), 0);
  ASSERT_EQ(make_send(3, 100).post(sender), 0);
  const ibv_wc received = node.wait_completion();
  EXPECT_EQ(received.wr_id, 2u);
  EXPECT_EQ(received.byte_len, 100u);
  EXPECT_EQ(received.imm_data, 99u);
  expect_sent(3);
}

TEST_F(UnreliableTest, MessageWithoutReceiveIsLost) {
  ASSERT_EQ(make_send(1, 100).post(sender), 0);
  expect_sent(1);
  ASSERT_EQ(receiver.post_receive(2, target, 0, 4096), 0);
  ASSERT_EQ(make_send(3, 200).post(sender), 0);
  EXPECT_EQ(node.wait_completion().byte_len, 200u) << "the lost one must not arrive later";
  expect_sent(3);
}

TEST_F(UnreliableTest, RefusedWriteIsLost) {
  target.fill(1);
  ASSERT_EQ(make_write(1, 4096, target.mr()->rkey + (1u << 20)).post(sender), 0);
  expect_sent(1);
  EXPECT_TRUE(target.matches(1, 4096));
}

TEST_F(UnreliableTest, MessageThatIsTooLongSpoilsItsReceive) {
  ASSERT_EQ(receiver.post_receive(1, target, 0, 64), 0);
  ASSERT_EQ(make_send(2, 65).post(sender), 0);
  EXPECT_EQ(node.wait_completion().status, IBV_WC_LOC_LEN_ERR);
  expect_sent(2);
}

TEST_F(UnreliableTest, MessagesToNobodyAreLost) {
  QueuePair lonely(node, {.type = IBV_QPT_UC});
  Address nobody = receiver.address();
  nobody.qp_number += 100;
  lonely.connect(nobody);
  ASSERT_EQ(make_send(1, 100).run(lonely), IBV_WC_SUCCESS);
}

TEST_F(UnreliableTest, OwnMistakesAreTold) {
  Send send(IBV_WR_SEND, 1);
  send.from(source, 0, 100);
  send.sges[0].lkey += 1u << 20;
  ASSERT_EQ(send.post(sender), 0);
  EXPECT_EQ(node.wait_completion().status, IBV_WC_LOC_PROT_ERR);
}

TEST_F(UnreliableTest, ReadsAreRefused) {
  EXPECT_EQ(Send(IBV_WR_RDMA_READ, 1).from(source, 0, 100).to(target.remote()).post(sender), EINVAL);
}

}  // namespace
}  // namespace verbena::softverbs_test
