#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>

#include "fixture.h"

#undef ibv_reg_mr
#undef ibv_query_port

// What is refused at the call, and what queries answer.
namespace verbena::softverbs_test {
namespace {

TEST(StateTest, TransitionsNeedTheirAttributes) {
  Node node;
  QueuePair pair(node);
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_INIT;
  attributes.port_num = 1;
  EXPECT_EQ(ibv_modify_qp(pair.qp, &attributes, IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX), EINVAL);
  EXPECT_EQ(pair.to_ready_to_send(), EINVAL) << "from RESET";
  attributes.port_num = 2;
  const int init_mask = IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS;
  EXPECT_EQ(ibv_modify_qp(pair.qp, &attributes, init_mask), EINVAL);
  EXPECT_EQ(pair.to_init(), 0);
  EXPECT_EQ(pair.qp->state, IBV_QPS_INIT);
  EXPECT_EQ(pair.to_init(), 0) << "INIT to INIT";
  EXPECT_EQ(pair.to_ready_to_send(), EINVAL) << "from INIT";
  EXPECT_EQ(pair.to_ready_to_receive(pair.address()), 0);
  EXPECT_EQ(pair.to_ready_to_send(), 0);
  EXPECT_EQ(pair.query_state(), IBV_QPS_RTS);
  EXPECT_EQ(pair.to_state(IBV_QPS_SQD), 0);
  EXPECT_EQ(pair.to_state(IBV_QPS_RTS), 0);
  EXPECT_EQ(pair.to_state(IBV_QPS_RESET), 0);
}

TEST(StateTest, PostsAreRefusedInTheWrongState) {
  Node node;
  QueuePair pair(node);
  Buffer buffer(node, 64);
  EXPECT_EQ(pair.post_receive(1, buffer, 0, 8), EINVAL) << "in RESET";
  EXPECT_EQ(Send(IBV_WR_SEND, 1).from(buffer, 0, 8).post(pair), EINVAL);
  EXPECT_EQ(pair.to_init(), 0);
  EXPECT_EQ(pair.post_receive(1, buffer, 0, 8), 0);
  EXPECT_EQ(pair.to_ready_to_receive(pair.address()), 0);
  EXPECT_EQ(Send(IBV_WR_SEND, 1).from(buffer, 0, 8).post(pair), EINVAL) << "in RTR";
}

TEST(StateTest, PostsAreRefusedBeyondTheQueuesLimits) {
  Node node;
  Buffer buffer(node, 4096);
  QueuePair pair(node, {.send_requests = 2, .receive_requests = 2, .sges = 2, .inline_bytes = 64});
  pair.connect(pair.address());
  EXPECT_EQ(Send(IBV_WR_RDMA_WRITE, 1)
                .from(buffer, 0, 1)
                .from(buffer, 1, 1)
                .from(buffer, 2, 1)
                .to(buffer.remote())
                .post(pair),
            EINVAL);
  EXPECT_EQ(Send(IBV_WR_RDMA_WRITE, 1, IBV_SEND_INLINE).from(buffer, 0, 65).to(buffer.remote()).post(pair),
            EINVAL);
  EXPECT_EQ(pair.post_receive(1, buffer, 0, 8), 0);
  EXPECT_EQ(pair.post_receive(2, buffer, 0, 8), 0);
  EXPECT_EQ(pair.post_receive(3, buffer, 0, 8), ENOMEM);
}

TEST(StateTest, ObjectsInUseAreNotDestroyed) {
  Node node;
  QueuePair pair(node);
  Buffer buffer(node, 64);
  EXPECT_EQ(ibv_destroy_cq(node.cq), EBUSY);
  EXPECT_EQ(ibv_dealloc_pd(node.pd), EBUSY);
}

TEST(StateTest, RegistrationChecksItsMemory) {
  Node node;
  uint64_t word = 0;
  EXPECT_EQ(ibv_reg_mr(node.pd, &word, 8, IBV_ACCESS_REMOTE_WRITE), nullptr) << "remote without local write";
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(ibv_reg_mr(node.pd, reinterpret_cast<void*>(4096), 8, 0), nullptr) << "not mapped";
  EXPECT_EQ(errno, EFAULT);
  EXPECT_EQ(ibv_reg_dmabuf_mr(node.pd, 0, 4096, 0, -1, 0), nullptr);
  EXPECT_EQ(errno, EBADF) << "NCCL takes anything else for unsupported";
}

TEST(StateTest, VirtualAddressMayDiffer) {
  Node node;
  Buffer source(node, 64);
  std::vector<uint8_t> memory(64);
  ibv_mr* mr =
      ibv_reg_mr_iova2(node.pd, memory.data(), 64, 0x10000, kAllAccess | IBV_ACCESS_RELAXED_ORDERING);
  ASSERT_NE(mr, nullptr);
  QueuePair pair(node);
  pair.connect(pair.address());
  source.fill(6);
  ASSERT_EQ(Send(IBV_WR_RDMA_WRITE, 1).from(source, 0, 16).to(0x10010, mr->rkey).run(pair), IBV_WC_SUCCESS);
  EXPECT_EQ(memory[16], source.data()[0]);
  EXPECT_EQ(memory[31], source.data()[15]);
  EXPECT_EQ(ibv_dereg_mr(mr), 0);
}

TEST(StateTest, RailsDiffer) {
  int count = 0;
  ibv_device** devices = ibv_get_device_list(&count);
  ASSERT_EQ(count, 4) << "SOFTVERBS_DEVICES=4 is the tests' environment";
  EXPECT_NE(ibv_get_device_guid(devices[0]), ibv_get_device_guid(devices[1]));
  EXPECT_STREQ(ibv_get_device_name(devices[3]), "softverbs3");
  ibv_context* context = ibv_open_device(devices[1]);
  ibv_device_attr device{};
  EXPECT_EQ(ibv_query_device(context, &device), 0);
  EXPECT_EQ(device.vendor_id, 0x5356u);
  EXPECT_EQ(device.node_guid, ibv_get_device_guid(devices[1]));
  ibv_gid first{}, second{};
  EXPECT_EQ(ibv_query_gid(context, 1, 0, &first), 0);
  EXPECT_EQ(ibv_query_gid(context, 1, 1, &second), 0);
  EXPECT_EQ(first.global.interface_id, device.node_guid);
  EXPECT_EQ(second.raw[10], 0xff);
  EXPECT_EQ(second.raw[12], 127);
  EXPECT_EQ(second.raw[15], 2) << "127.a.b.2";
  EXPECT_EQ(ibv_query_gid(context, 1, 2, &second), -1);
  EXPECT_EQ(ibv_close_device(context), 0);
  ibv_free_device_list(devices);
}

// Without a wire another host's GIDs lead nowhere: not by chance to a process of this host.
TEST(StateTest, GidsOfOtherHostsAreRefused) {
  if (getenv("SOFTVERBS_NETDEVS") != nullptr) GTEST_SKIP() << "other hosts can be reached: skipped";
  Node node;
  QueuePair pair(node);
  const Address own = pair.address();
  EXPECT_FALSE(own.gid.raw[13] == 0 && own.gid.raw[14] == 0) << "127.0.0.x is everybody's";
  Address address_of_other = own, guid_of_other = own;
  address_of_other.gid.raw[13] ^= 1;
  ASSERT_EQ(ibv_query_gid(node.context, 1, 0, &guid_of_other.gid), 0);
  guid_of_other.gid.raw[12] ^= 1;
  ASSERT_EQ(pair.to_init(), 0);
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(pair.to_ready_to_receive(address_of_other), ENETUNREACH);
  EXPECT_EQ(pair.to_ready_to_receive(guid_of_other), ENETUNREACH);
  EXPECT_NE(::testing::internal::GetCapturedStderr().find("SOFTVERBS_NETDEVS"), std::string::npos);
  EXPECT_EQ(pair.to_ready_to_receive(own), 0);
}

// NCCL's own header has a shorter ibv_qp_attr and keeps one on its stack.
TEST(StateTest, QueriesWriteNothingBehindOlderStructs) {
  Node node;
  QueuePair pair(node);
  pair.connect(pair.address());
  constexpr size_t kNcclQpAttrBytes = 136, kOldPortBytes = 48;
  struct {
    ibv_qp_attr attributes{};
  } guarded;
  auto* bytes = reinterpret_cast<uint8_t*>(&guarded.attributes);
  bytes[kNcclQpAttrBytes] = 0x5a;
  ibv_qp_init_attr init{};
  EXPECT_EQ(ibv_query_qp(pair.qp, &guarded.attributes, IBV_QP_STATE | IBV_QP_AV, &init), 0);
  EXPECT_EQ(bytes[kNcclQpAttrBytes], 0x5a);
  EXPECT_EQ(guarded.attributes.dest_qp_num, pair.qp->qp_num);
  EXPECT_EQ(guarded.attributes.timeout, 14);

  uint8_t port[64];
  memset(port, 0x5a, sizeof(port));
  EXPECT_EQ(ibv_query_port(node.context, 1, reinterpret_cast<_compat_ibv_port_attr*>(port)), 0);
  EXPECT_EQ(port[kOldPortBytes], 0x5a);
  EXPECT_EQ(reinterpret_cast<ibv_port_attr*>(port)->link_layer, IBV_LINK_LAYER_ETHERNET);
}

}  // namespace
}  // namespace verbena::softverbs_test
