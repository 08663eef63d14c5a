#include <cerrno>
#include <cstring>

#include "wire_fixture.h"

// What verbs there are between hosts, and what is refused.
namespace verbena::softverbs_test {
namespace {

class WireRulesTest : public WireTest {};

// What cannot work is refused when queue pairs are connected.
TEST_F(WireRulesTest, DeadEndsAreRefused) {
  choose_address(0);
  ASSERT_TRUE(network->enter(0));
  setenv("SOFTVERBS_DEVICES", "1", 1);
  Node node;
  QueuePair reliable(node), unreliable(node, {.type = IBV_QPT_UC});
  Address far = reliable.address();
  far.gid.raw[15] = 2;
  ASSERT_EQ(reliable.to_init(), 0);
  ASSERT_EQ(unreliable.to_init(), 0);
  EXPECT_EQ(unreliable.to_ready_to_receive(far), EOPNOTSUPP);
  Address unwired = far;  // as hosts without SOFTVERBS_NETDEVS say
  unwired.gid.raw[12] = 127;
  EXPECT_EQ(reliable.to_ready_to_receive(unwired), ENETUNREACH);
  EXPECT_EQ(reliable.to_ready_to_receive(far), 0);
}

TEST_F(WireRulesTest, AtomicWritesAndWindowsWorkOnTheOtherHost) {
  const auto far = start_far([](int socket) {
    Node node;
    QueuePair pair(node);
    Buffer memory(node, 4096, kAllAccess | IBV_ACCESS_MW_BIND);
    memory.fill(0);
    meet(socket, pair);
    ibv_mw* window = ibv_alloc_mw(node.pd, IBV_MW_TYPE_2);
    ASSERT_NE(window, nullptr);
    Send bind(IBV_WR_BIND_MW, 1);
    bind.request.bind_mw.mw = window;
    const uint32_t key = ibv_inc_rkey(window->rkey);
    bind.request.bind_mw.rkey = key;
    bind.request.bind_mw.bind_info = {memory.mr(), memory.address() + 1024, 1024, IBV_ACCESS_REMOTE_WRITE};
    ASSERT_EQ(bind.run(pair), IBV_WC_SUCCESS);
    tell(socket, memory.remote());
    tell(socket, RemoteMemory{memory.address() + 1024, key});
    ASSERT_EQ(pair.post_receive(5, memory, 0, 8), 0);
    const ibv_wc wc = node.wait_completion();
    EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
    EXPECT_EQ(wc.wc_flags & IBV_WC_WITH_INV, static_cast<unsigned>(IBV_WC_WITH_INV));
    tell(socket, true);
    hear<bool>(socket);
    EXPECT_EQ(ibv_dealloc_mw(window), 0);
  });
  Node node;
  QueuePair pair(node);
  Buffer memory(node, 4096);
  memory.fill(6);
  meet(far->socket(), pair);
  const auto whole = hear<RemoteMemory>(far->socket());
  const auto window = hear<RemoteMemory>(far->socket());
  Send(IBV_WR_ATOMIC_WRITE, 1).from(memory, 8, 8).to(whole + 64).post(pair);
  EXPECT_EQ(node.wait_completion().status, IBV_WC_SUCCESS);
  Send(IBV_WR_RDMA_WRITE, 2).from(memory, 0, 1024).to(window).post(pair);
  EXPECT_EQ(node.wait_completion().status, IBV_WC_SUCCESS);
  Send(IBV_WR_RDMA_READ, 3).from(memory, 2048, 2048).to(whole).post(pair);
  EXPECT_EQ(node.wait_completion().status, IBV_WC_SUCCESS);
  EXPECT_EQ(memcmp(memory.data() + 2048 + 64, memory.data() + 8, 8), 0);
  EXPECT_EQ(memcmp(memory.data() + 2048 + 1024, memory.data(), 1024), 0);
  Send invalidate(IBV_WR_SEND_WITH_INV, 4);
  invalidate.request.invalidate_rkey = window.rkey;
  ASSERT_EQ(invalidate.from(memory, 0, 8).run(pair), IBV_WC_SUCCESS);
  EXPECT_TRUE(hear<bool>(far->socket()));
  Send(IBV_WR_RDMA_WRITE, 5).from(memory, 0, 8).to(window).post(pair);
  EXPECT_EQ(node.wait_completion().status, IBV_WC_REM_ACCESS_ERR);
  tell(far->socket(), true);
}

}  // namespace
}  // namespace verbena::softverbs_test
