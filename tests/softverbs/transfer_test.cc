#include <cstring>

#include "fixture.h"

// Every operation between two queue pairs of one process.
namespace verbena::softverbs_test {
namespace {

class TransferTest : public ::testing::Test, protected TwoNodes {
 protected:
  TransferTest() : TwoNodes(1 << 20) {}
};

TEST_F(TransferTest, SendFillsTheReceive) {
  connect();
  source.fill(3);
  ASSERT_EQ(right->post_receive(7, target, 0, 5000), 0);
  ASSERT_EQ(Send(IBV_WR_SEND_WITH_IMM, 8)
                .from(source, 0, 1000)
                .from(source, 1000, 3000)
                .with_immediate(99)
                .post(*left),
            0);
  const ibv_wc sent = left_node.wait_completion();
  EXPECT_EQ(sent.status, IBV_WC_SUCCESS);
  EXPECT_EQ(sent.wr_id, 8u);
  EXPECT_EQ(sent.opcode, IBV_WC_SEND);
  const ibv_wc received = right_node.wait_completion();
  EXPECT_EQ(received.status, IBV_WC_SUCCESS);
  EXPECT_EQ(received.wr_id, 7u);
  EXPECT_EQ(received.opcode, IBV_WC_RECV);
  EXPECT_EQ(received.byte_len, 4000u);
  EXPECT_EQ(received.imm_data, 99u);
  EXPECT_EQ(received.wc_flags, static_cast<unsigned>(IBV_WC_WITH_IMM));
  EXPECT_EQ(received.qp_num, right->qp->qp_num);
  EXPECT_EQ(received.src_qp, left->qp->qp_num);
  EXPECT_TRUE(target.matches(3, 4000));
  EXPECT_EQ(target.data()[4000], 0);
}

TEST_F(TransferTest, WriteLandsWithoutReceive) {
  connect();
  for (size_t bytes : {0, 1, 7, 8, 9, 63, 64, 65, 511, 4096, 70001, 1 << 20}) {
    source.fill(static_cast<uint8_t>(bytes));
    memset(target.data(), 0, target.size());
    ASSERT_EQ(write(bytes, bytes).post(*left), 0);
    const ibv_wc wc = left_node.wait_completion();
    EXPECT_EQ(wc.status, IBV_WC_SUCCESS) << bytes;
    EXPECT_EQ(wc.opcode, IBV_WC_RDMA_WRITE);
    EXPECT_TRUE(target.matches(static_cast<uint8_t>(bytes), bytes)) << bytes;
    if (bytes < target.size()) {
      EXPECT_EQ(target.data()[bytes], 0) << bytes;
    }
  }
}

TEST_F(TransferTest, WriteWithImmediateReportsWrittenLength) {
  connect();
  source.fill(1);
  ASSERT_EQ(right->post_receive(5, target, 0, 16), 0);  // its buffer is not used
  Send send = write(6, 70000);
  send.request.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
  ASSERT_EQ(send.with_immediate(0xabcd).post(*left), 0);
  const ibv_wc received = right_node.wait_completion();
  EXPECT_EQ(received.opcode, IBV_WC_RECV_RDMA_WITH_IMM);
  EXPECT_EQ(received.byte_len, 70000u);
  EXPECT_EQ(received.imm_data, 0xabcdu);
  EXPECT_EQ(received.wr_id, 5u);
  EXPECT_TRUE(target.matches(1, 70000));
  EXPECT_EQ(left_node.wait_completion().status, IBV_WC_SUCCESS);
}

TEST_F(TransferTest, ReadFetches) {
  connect();
  target.fill(77);
  ASSERT_EQ(
      Send(IBV_WR_RDMA_READ, 1).from(source, 0, 300).from(source, 300, 5000).to(target.remote()).post(*left),
      0);
  const ibv_wc wc = left_node.wait_completion();
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_EQ(wc.opcode, IBV_WC_RDMA_READ);
  EXPECT_EQ(wc.byte_len, 5300u);
  EXPECT_TRUE(source.matches(77, 5300));
}

TEST_F(TransferTest, InlineBytesAreTakenAtThePost) {
  connect({.rnr_retry = 7});
  source.fill(4);
  // No receive is posted yet, so the message waits; the source changes meanwhile.
  ASSERT_EQ(Send(IBV_WR_SEND, 1, IBV_SEND_SIGNALED | IBV_SEND_INLINE).from(source, 0, 200).post(*left), 0);
  source.fill(5);
  ASSERT_EQ(right->post_receive(2, target, 0, 200), 0);
  EXPECT_EQ(left_node.wait_completion().status, IBV_WC_SUCCESS);
  EXPECT_TRUE(target.matches(4, 200));
  EXPECT_EQ(right_node.wait_completion().byte_len, 200u);
}

TEST_F(TransferTest, UnsignaledRequestsReturnTheirPlaceWithTheNextCompletion) {
  connect({.send_requests = 4});
  const unsigned unsignaled = 0;
  for (int round = 0; round < 10; ++round) {
    for (int i = 0; i < 3; ++i) ASSERT_EQ(write(0, 64, unsignaled).post(*left), 0);
    ASSERT_EQ(write(9, 64).post(*left), 0);
    EXPECT_EQ(write(0, 64, unsignaled).post(*left), ENOMEM) << "nothing was polled";
    EXPECT_EQ(left_node.wait_completion().wr_id, 9u);
  }
}

TEST_F(TransferTest, SignalAllReportsEverything) {
  connect({.signal_all = true});
  ASSERT_EQ(write(1, 64, 0).post(*left), 0);
  EXPECT_EQ(left_node.wait_completion().wr_id, 1u);
}

TEST_F(TransferTest, ChainIsExecutedInOrder) {
  connect();
  constexpr int kCount = 20;
  std::vector<Send> chain;
  for (int i = 0; i < kCount; ++i) chain.push_back(write(static_cast<uint64_t>(i), 100));
  ASSERT_EQ(post_together(*left, chain), 0);
  const auto completions = left_node.wait_completions(kCount);
  for (int i = 0; i < kCount; ++i)
    EXPECT_EQ(completions[static_cast<size_t>(i)].wr_id, static_cast<uint64_t>(i));
}

TEST_F(TransferTest, OwnQueuePairCanBeThePeer) {
  Node node;
  Buffer from(node, 4096), to(node, 4096);
  QueuePair loop(node);
  loop.connect(loop.address());
  from.fill(8);
  ASSERT_EQ(Send(IBV_WR_RDMA_WRITE, 1).from(from, 0, 4096).to(to.remote()).run(loop), IBV_WC_SUCCESS);
  EXPECT_TRUE(to.matches(8, 4096));
  memset(from.data(), 0, 4096);
  ASSERT_EQ(Send(IBV_WR_RDMA_READ, 2).from(from, 0, 4096).to(to.remote()).run(loop), IBV_WC_SUCCESS);
  EXPECT_TRUE(from.matches(8, 4096));
}

TEST_F(TransferTest, LargeCopiesKeepTheOrderOfTheirQueuePair) {
  connect();
  constexpr size_t kLarge = 1 << 20;
  for (int round = 0; round < 20; ++round) {
    source.fill(static_cast<uint8_t>(round));
    ASSERT_EQ(right->post_receive(1, target, 0, 0), 0);
    ASSERT_EQ(write(1, kLarge, 0).post(*left), 0);
    ASSERT_EQ(Send(IBV_WR_RDMA_WRITE_WITH_IMM, 2).to(0, 0).post(*left), 0);
    EXPECT_EQ(right_node.wait_completion().opcode, IBV_WC_RECV_RDMA_WITH_IMM);
    EXPECT_TRUE(target.matches(static_cast<uint8_t>(round), kLarge));
    EXPECT_EQ(left_node.wait_completion().wr_id, 2u);
  }
}

}  // namespace
}  // namespace verbena::softverbs_test
