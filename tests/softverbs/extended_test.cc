#include <cstring>

#include "datagrams.h"
#include "fixture.h"

#undef ibv_reg_mr

// Atomic operations, datagrams, and the ibv_wr_* way to post.
namespace verbena::softverbs_test {
namespace {

Send make_atomic(ibv_wr_opcode opcode, const Buffer& result, RemoteMemory target, uint64_t compare_add,
                 uint64_t swap) {
  Send send(opcode, 1);
  send.from(result, 0, 8);
  send.request.wr.atomic = {target.address, compare_add, swap, target.rkey};
  return send;
}

uint64_t load(const uint8_t* address) {
  uint64_t word;
  memcpy(&word, address, sizeof(word));
  return word;
}

TEST(AtomicTest, FetchAddAndCompareSwap) {
  Node node;
  Buffer result(node, 64), target(node, 64);
  const RemoteMemory far{target.address() + 8, target.mr()->rkey};
  QueuePair pair(node);
  pair.connect(pair.address());
  const uint64_t start = 100;
  memcpy(target.data() + 8, &start, 8);
  ASSERT_EQ(make_atomic(IBV_WR_ATOMIC_FETCH_AND_ADD, result, far, 5, 0).post(pair), 0);
  const ibv_wc wc = node.wait_completion();
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_EQ(wc.opcode, IBV_WC_FETCH_ADD);
  EXPECT_EQ(load(result.data()), 100u);
  EXPECT_EQ(load(target.data() + 8), 105u);
  ASSERT_EQ(make_atomic(IBV_WR_ATOMIC_CMP_AND_SWP, result, far, 104, 7).post(pair), 0);
  EXPECT_EQ(node.wait_completion().opcode, IBV_WC_COMP_SWAP);
  EXPECT_EQ(load(target.data() + 8), 105u) << "did not compare equal";
  ASSERT_EQ(make_atomic(IBV_WR_ATOMIC_CMP_AND_SWP, result, far, 105, 7).post(pair), 0);
  node.wait_completion();
  EXPECT_EQ(load(result.data()), 105u);
  EXPECT_EQ(load(target.data() + 8), 7u);
  ASSERT_EQ(make_atomic(IBV_WR_ATOMIC_FETCH_AND_ADD, result, {far.address + 4, far.rkey}, 1, 0).post(pair),
            0);
  EXPECT_EQ(node.wait_completion().status, IBV_WC_REM_INV_REQ_ERR) << "misaligned";
}

TEST(AtomicTest, AdditionsOfSeveralProcessesAddUp) {
  constexpr uint64_t kAdditions = 3000;
  std::vector<std::unique_ptr<Child>> children;
  for (int i = 0; i < 3; ++i) {
    children.push_back(std::make_unique<Child>([](int socket) {
      Node node;
      Buffer result(node, 8);
      QueuePair pair(node);
      tell(socket, pair.address());
      pair.connect(hear<Address>(socket));
      const auto far = hear<RemoteMemory>(socket);
      for (uint64_t n = 0; n < kAdditions; ++n) {
        ASSERT_EQ(make_atomic(IBV_WR_ATOMIC_FETCH_AND_ADD, result, far, 1, 0).run(pair), IBV_WC_SUCCESS);
      }
      tell(socket, true);
    }));
  }
  Node node;
  Buffer counter(node, 8);
  std::vector<std::unique_ptr<QueuePair>> pairs;
  for (auto& child : children) {
    pairs.push_back(std::make_unique<QueuePair>(node));
    tell(child->socket(), pairs.back()->address());
    pairs.back()->connect(hear<Address>(child->socket()));
    tell(child->socket(), counter.remote());
  }
  for (auto& child : children) hear<bool>(child->socket());
  EXPECT_EQ(load(counter.data()), 3 * kAdditions);
}

void post_receive(const DatagramEnd& end, const Buffer& buffer) {
  ibv_sge sge{buffer.address(), static_cast<uint32_t>(buffer.size()), buffer.mr()->lkey};
  ibv_recv_wr request{}, *bad = nullptr;
  request.sg_list = &sge;
  request.num_sge = 1;
  EXPECT_EQ(ibv_post_recv(end.qp, &request, &bad), 0);
}

int post_datagram(const DatagramEnd& from, const Buffer& source, size_t bytes, ibv_ah* ah, uint32_t number,
                  uint32_t qkey, unsigned flags = 0) {
  ibv_sge sge{source.address(), static_cast<uint32_t>(bytes), source.mr()->lkey};
  ibv_send_wr request{}, *bad = nullptr;
  request.opcode = IBV_WR_SEND;
  request.send_flags = IBV_SEND_SIGNALED | flags;
  request.sg_list = &sge;
  request.num_sge = 1;
  request.wr.ud = {ah, number, qkey};
  return ibv_post_send(from.qp, &request, &bad);
}

TEST(DatagramTest, IsLongerThanAnMtuIfItSaysSo) {
  constexpr uint32_t kMostBytes = (128 << 10) + 24;
  constexpr unsigned kSendLong = 1u << 30;
  Node left_node, right_node;
  Buffer source(left_node, kMostBytes + 1), target(right_node, 40 + kMostBytes);
  DatagramEnd left(left_node, 16), right(right_node, 16);
  ibv_ah* ah = left.make_handle(right.address(), 0);
  source.fill(9);
  post_receive(right, target);
  const uint32_t number = right.qp->qp_num;
  EXPECT_EQ(post_datagram(left, source, kMostBytes + 1, ah, number, kDatagramKey, kSendLong), EINVAL);
  ASSERT_EQ(post_datagram(left, source, kMostBytes, ah, number, kDatagramKey, kSendLong), 0);
  EXPECT_EQ(left_node.wait_completion().status, IBV_WC_SUCCESS);
  EXPECT_EQ(right_node.wait_completion().byte_len, 40 + kMostBytes);
  EXPECT_EQ(memcmp(target.data() + 40, source.data(), kMostBytes), 0);
  EXPECT_EQ(ibv_destroy_ah(ah), 0);
}

TEST(DatagramTest, ArrivesBehindItsHeaderOrNotAtAll) {
  Node left_node, right_node;
  Buffer source(left_node, 1024), target(right_node, 2048);
  DatagramEnd left(left_node, 16), right(right_node, 16);
  ibv_ah_attr attributes{};
  attributes.port_num = 1;
  EXPECT_EQ(ibv_create_ah(left_node.pd, &attributes), nullptr) << "without a GID";
  ibv_ah* ah = left.make_handle(right.address(), 0);
  source.fill(3);
  const uint32_t number = right.qp->qp_num;
  ASSERT_EQ(post_datagram(left, source, 1000, ah, number, kDatagramKey), 0);
  EXPECT_EQ(left_node.wait_completion().status, IBV_WC_SUCCESS) << "lost, as nobody listens";
  post_receive(right, target);
  ASSERT_EQ(post_datagram(left, source, 1000, ah, number, kDatagramKey + 1), 0);
  EXPECT_EQ(left_node.wait_completion().status, IBV_WC_SUCCESS) << "lost, as the key is wrong";
  ASSERT_EQ(post_datagram(left, source, 1000, ah, number, kDatagramKey), 0);
  EXPECT_EQ(left_node.wait_completion().status, IBV_WC_SUCCESS);
  ibv_wc wc = right_node.wait_completion();
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_EQ(wc.byte_len, 1040u);
  EXPECT_EQ(wc.src_qp, left.qp->qp_num);
  EXPECT_NE(wc.wc_flags & IBV_WC_GRH, 0u);
  EXPECT_EQ(memcmp(target.data() + 40, source.data(), 1000), 0);
  // The header leads back.
  ibv_ah* back = ibv_create_ah_from_wc(right_node.pd, &wc, reinterpret_cast<ibv_grh*>(target.data()), 1);
  ASSERT_NE(back, nullptr);
  post_receive(left, source);
  ASSERT_EQ(post_datagram(right, target, 8, back, wc.src_qp, kDatagramKey), 0);
  EXPECT_EQ(right_node.wait_completion().status, IBV_WC_SUCCESS);
  EXPECT_EQ(left_node.wait_completion().byte_len, 48u);
  EXPECT_EQ(post_datagram(left, source, 5000, ah, number, kDatagramKey), EINVAL) << "longer than a packet";
  EXPECT_EQ(ibv_destroy_ah(back), 0);
  EXPECT_EQ(ibv_destroy_ah(ah), 0);
}

TEST(ExtendedPostTest, BuildsAndPostsAllOrNothing) {
  Node node;
  Buffer source(node, 256), target(node, 256);
  ibv_qp_init_attr_ex init{};
  init.send_cq = init.recv_cq = node.cq;
  init.cap = {4, 4, 2, 2, 64};
  init.qp_type = IBV_QPT_RC;
  init.pd = node.pd;
  init.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS | IBV_QP_INIT_ATTR_CREATE_FLAGS;
  init.send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_TSO;
  EXPECT_EQ(ibv_create_qp_ex(node.context, &init), nullptr) << "an operation that the device does not have";
  init.send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_SEND;
  QueuePair pair(node);
  EXPECT_EQ(ibv_qp_to_qp_ex(pair.qp), nullptr) << "created without the extended posts";
  ASSERT_EQ(ibv_destroy_qp(pair.qp), 0);
  pair.qp = ibv_create_qp_ex(node.context, &init);
  ASSERT_NE(pair.qp, nullptr);
  pair.connect(pair.address());
  ibv_qp_ex* ex = ibv_qp_to_qp_ex(pair.qp);
  ASSERT_NE(ex, nullptr);

  source.fill(4);
  ibv_wr_start(ex);
  ex->wr_id = 1;
  ex->wr_flags = 0;
  ibv_wr_rdma_write(ex, target.mr()->rkey, target.address());
  ibv_wr_set_sge(ex, source.mr()->lkey, source.address(), 64);
  ex->wr_id = 2;
  ex->wr_flags = IBV_SEND_SIGNALED;
  ibv_wr_rdma_write(ex, target.mr()->rkey, target.address() + 64);
  ibv_wr_set_inline_data(ex, source.data() + 64, 32);
  source.data()[64] ^= 0xff;  // the inline bytes were taken before
  ASSERT_EQ(ibv_wr_complete(ex), 0);
  EXPECT_EQ(node.wait_completion().wr_id, 2u);
  EXPECT_TRUE(target.matches(4, 96));

  ibv_wr_start(ex);
  for (int i = 0; i < 5; ++i) {
    ibv_wr_rdma_write(ex, target.mr()->rkey, target.address());
    ibv_wr_set_sge(ex, source.mr()->lkey, source.address(), 8);
  }
  EXPECT_EQ(ibv_wr_complete(ex), ENOMEM) << "five into a queue of four";
  ibv_wr_start(ex);
  ibv_wr_rdma_write(ex, target.mr()->rkey, target.address());
  ibv_wr_abort(ex);
  ibv_wc wc{};
  EXPECT_EQ(ibv_poll_cq(node.cq, 1, &wc), 0);
}

}  // namespace
}  // namespace verbena::softverbs_test
