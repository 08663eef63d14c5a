#include "fixture.h"

// Memory windows: keys for a part of a region, bound and ended by work requests.
namespace verbena::softverbs_test {
namespace {

constexpr uint32_t kTagMask = 0xff;
constexpr int kRegionAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND;

struct WindowTest : ::testing::Test {
  Node node;
  Buffer source{node, 4096}, region{node, 4096, kRegionAccess};
  QueuePair near{node}, far{node};
  ibv_mw* window = nullptr;

  WindowTest() {
    near.connect(far.address());
    far.connect(near.address());
    source.fill(7);
  }
  ~WindowTest() override {
    if (window != nullptr) {
      EXPECT_EQ(ibv_dealloc_mw(window), 0);
    }
  }

  void allocate(ibv_mw_type type) {
    window = ibv_alloc_mw(node.pd, type);
    ASSERT_NE(window, nullptr);
  }
  ibv_mw_bind_info make_info(size_t offset, size_t bytes, unsigned access = IBV_ACCESS_REMOTE_WRITE) {
    return {region.mr(), region.address() + offset, bytes, access};
  }
  ibv_wc_status bind_first_type(const ibv_mw_bind_info& info) {
    ibv_mw_bind bind{1, IBV_SEND_SIGNALED, info};
    EXPECT_EQ(ibv_bind_mw(far.qp, window, &bind), 0);
    return node.wait_completion().status;
  }
  ibv_wc bind_second_type(const ibv_mw_bind_info& info) {
    Send send(IBV_WR_BIND_MW, 2);
    send.request.bind_mw = {window, (window->rkey & ~kTagMask) | ((window->rkey + 1) & kTagMask), info};
    EXPECT_EQ(send.post(far), 0);
    return node.wait_completion();
  }
  // Through `rkey` into the region at `offset`.
  ibv_wc_status write(uint32_t rkey, size_t offset, size_t bytes) {
    EXPECT_EQ(
        Send(IBV_WR_RDMA_WRITE, 3).from(source, 0, bytes).to(region.address() + offset, rkey).post(near), 0);
    return node.wait_completion().status;
  }
};

TEST_F(WindowTest, FirstTypeOpensItsPartOnly) {
  allocate(IBV_MW_TYPE_1);
  const uint32_t before = window->rkey;
  ASSERT_EQ(bind_first_type(make_info(1024, 1024)), IBV_WC_SUCCESS);
  EXPECT_NE(window->rkey, before);
  EXPECT_EQ(write(window->rkey, 1024, 1024), IBV_WC_SUCCESS);
  EXPECT_EQ(memcmp(region.data() + 1024, source.data(), 1024), 0);
  EXPECT_EQ(write(window->rkey, 1023, 8), IBV_WC_REM_ACCESS_ERR);
}

// Local requests have no peer, and the peer counts requests without them.
TEST_F(WindowTest, RequestsGoOnAfterLocalOnes) {
  allocate(IBV_MW_TYPE_2);
  Buffer target(node, 4096);
  const auto put_and_get = [&](size_t offset) {
    Send put(IBV_WR_RDMA_WRITE, 4), get(IBV_WR_RDMA_READ, 5);
    put.from(source, offset, 512).to(target.remote(offset));
    get.from(target, offset + 512, 512).to(source.remote(offset + 512));
    EXPECT_EQ(put.run(far), IBV_WC_SUCCESS);
    EXPECT_EQ(get.run(far), IBV_WC_SUCCESS);
  };
  Send invalidate(IBV_WR_LOCAL_INV, 6), send(IBV_WR_SEND, 7);
  ASSERT_EQ(bind_second_type(make_info(0, 1024)).status, IBV_WC_SUCCESS);
  put_and_get(0);
  invalidate.request.invalidate_rkey = window->rkey;
  ASSERT_EQ(invalidate.run(far), IBV_WC_SUCCESS);
  put_and_get(1024);
  EXPECT_EQ(memcmp(target.data(), source.data(), 2048), 0);
  // The peer has no receive yet, and asks for the request again.
  ASSERT_EQ(send.from(source, 0, 64).post(far), 0);
  ASSERT_EQ(near.post_receive(8, target, 2048, 64), 0);
  for (const ibv_wc& wc : node.wait_completions(2)) EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
}

TEST_F(WindowTest, BindingWithoutLengthEndsTheKey) {
  allocate(IBV_MW_TYPE_1);
  ASSERT_EQ(bind_first_type(make_info(0, 4096)), IBV_WC_SUCCESS);
  const uint32_t key = window->rkey;
  ASSERT_EQ(bind_first_type({}), IBV_WC_SUCCESS);
  EXPECT_EQ(write(key, 0, 8), IBV_WC_REM_ACCESS_ERR);
}

TEST_F(WindowTest, RebindingEndsTheKeyBefore) {
  allocate(IBV_MW_TYPE_1);
  ASSERT_EQ(bind_first_type(make_info(0, 4096)), IBV_WC_SUCCESS);
  const uint32_t key = window->rkey;
  ASSERT_EQ(bind_first_type(make_info(0, 4096)), IBV_WC_SUCCESS);
  EXPECT_EQ(write(window->rkey, 0, 8), IBV_WC_SUCCESS);
  EXPECT_EQ(write(key, 0, 8), IBV_WC_REM_ACCESS_ERR);
}

TEST_F(WindowTest, SecondTypeIsForItsQueuePairOnly) {
  allocate(IBV_MW_TYPE_2);
  const ibv_wc bound = bind_second_type(make_info(0, 4096));
  EXPECT_EQ(bound.status, IBV_WC_SUCCESS);
  EXPECT_EQ(bound.opcode, IBV_WC_BIND_MW);
  EXPECT_EQ(write(window->rkey, 0, 4096), IBV_WC_SUCCESS);
  EXPECT_TRUE(region.matches(7, 4096));
  QueuePair other(node);
  other.connect(other.address());
  ASSERT_EQ(Send(IBV_WR_RDMA_WRITE, 4).from(source, 0, 8).to(region.address(), window->rkey).post(other), 0);
  EXPECT_EQ(node.wait_completion().status, IBV_WC_REM_ACCESS_ERR);
}

TEST_F(WindowTest, SecondTypeIsNotBoundTwice) {
  allocate(IBV_MW_TYPE_2);
  ASSERT_EQ(bind_second_type(make_info(0, 4096)).status, IBV_WC_SUCCESS);
  EXPECT_EQ(bind_second_type(make_info(0, 4096)).status, IBV_WC_MW_BIND_ERR);
}

TEST_F(WindowTest, OwnerInvalidates) {
  allocate(IBV_MW_TYPE_2);
  ASSERT_EQ(bind_second_type(make_info(0, 4096)).status, IBV_WC_SUCCESS);
  Send send(IBV_WR_LOCAL_INV, 5);
  send.request.invalidate_rkey = window->rkey;
  ASSERT_EQ(send.post(far), 0);
  const ibv_wc wc = node.wait_completion();
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_EQ(wc.opcode, IBV_WC_LOCAL_INV);
  EXPECT_EQ(write(window->rkey, 0, 8), IBV_WC_REM_ACCESS_ERR);
}

TEST_F(WindowTest, PeerInvalidatesWithItsMessage) {
  allocate(IBV_MW_TYPE_2);
  ASSERT_EQ(bind_second_type(make_info(0, 4096)).status, IBV_WC_SUCCESS);
  ASSERT_EQ(far.post_receive(6, source, 0, 64), 0);
  Send send(IBV_WR_SEND_WITH_INV, 7);
  send.from(source, 64, 64);
  send.request.invalidate_rkey = window->rkey;
  ASSERT_EQ(send.post(near), 0);
  const ibv_wc received = node.wait_completion();
  EXPECT_EQ(received.wr_id, 6u);
  EXPECT_EQ(received.wc_flags, static_cast<unsigned>(IBV_WC_WITH_INV));
  EXPECT_EQ(received.invalidated_rkey, window->rkey);
  EXPECT_EQ(node.wait_completion().status, IBV_WC_SUCCESS);
  EXPECT_EQ(write(window->rkey, 0, 8), IBV_WC_REM_ACCESS_ERR);
}

TEST_F(WindowTest, PeerCannotInvalidateARegion) {
  ASSERT_EQ(far.post_receive(1, source, 0, 64), 0);
  Send send(IBV_WR_SEND_WITH_INV, 2);
  send.request.invalidate_rkey = region.mr()->rkey;
  ASSERT_EQ(send.post(near), 0);
  EXPECT_EQ(node.wait_completions(2).size(), 2u);
  EXPECT_EQ(near.query_state(), IBV_QPS_ERR);
  Buffer again(node, 64);
  QueuePair pair(node);
  pair.connect(pair.address());
  Send local(IBV_WR_SEND, 3);
  local.from(region, 0, 8);
  ASSERT_EQ(pair.post_receive(4, again, 0, 64), 0);
  ASSERT_EQ(local.run(pair), IBV_WC_SUCCESS) << "the region's key still works";
  node.wait_completion();
}

TEST_F(WindowTest, BindingAsksTheRegion) {
  allocate(IBV_MW_TYPE_1);
  ibv_mw_bind_info beyond = make_info(1, 4096);
  EXPECT_EQ(bind_first_type(beyond), IBV_WC_MW_BIND_ERR) << "beyond its end";
}

TEST_F(WindowTest, BindingAsksForTheRight) {
  allocate(IBV_MW_TYPE_1);
  EXPECT_EQ(bind_first_type({source.mr(), source.address(), 64, IBV_ACCESS_REMOTE_READ}), IBV_WC_MW_BIND_ERR)
      << "not registered for windows";
}

TEST_F(WindowTest, WindowEndsWithItsRegion) {
  allocate(IBV_MW_TYPE_1);
  ASSERT_EQ(bind_first_type(make_info(0, 4096)), IBV_WC_SUCCESS);
  region.drop_mr();
  EXPECT_EQ(write(window->rkey, 0, 8), IBV_WC_REM_ACCESS_ERR);
}

TEST_F(WindowTest, KeyOfAWindowIsNoLocalKey) {
  allocate(IBV_MW_TYPE_1);
  ASSERT_EQ(bind_first_type(make_info(0, 4096)), IBV_WC_SUCCESS);
  Send send(IBV_WR_RDMA_WRITE, 1);
  send.from(region, 0, 8).to(source.remote());
  send.sges[0].lkey = window->rkey;
  ASSERT_EQ(send.post(far), 0);
  EXPECT_EQ(node.wait_completion().status, IBV_WC_LOC_PROT_ERR);
}

TEST(WindowTypeTest, UnknownTypesAreRefused) {
  Node node;
  EXPECT_EQ(ibv_alloc_mw(node.pd, static_cast<ibv_mw_type>(3)), nullptr);
  EXPECT_EQ(errno, EINVAL);
}

TEST(AtomicWriteTest, PutsAnAlignedWord) {
  Node node;
  Buffer source(node, 64), target(node, 64);
  QueuePair pair(node);
  pair.connect(pair.address());
  source.fill(9);
  Send send(IBV_WR_ATOMIC_WRITE, 1);
  ASSERT_EQ(send.from(source, 0, 8).to(target.remote(8)).post(pair), 0);
  const ibv_wc wc = node.wait_completion();
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_EQ(wc.opcode, IBV_WC_ATOMIC_WRITE);
  EXPECT_EQ(memcmp(target.data() + 8, source.data(), 8), 0);
  send.sges[0].length = 16;
  EXPECT_EQ(send.post(pair), EINVAL);
  send.sges[0].length = 8;
  send.request.wr.rdma.remote_addr += 4;
  ASSERT_EQ(send.post(pair), 0);
  EXPECT_EQ(node.wait_completion().status, IBV_WC_REM_INV_REQ_ERR) << "misaligned";
}

}  // namespace
}  // namespace verbena::softverbs_test
