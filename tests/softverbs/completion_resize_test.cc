#include <poll.h>

#include <atomic>
#include <thread>

#include "fixture.h"

// Completion queues that grow while queue pairs use them.
namespace verbena::softverbs_test {
namespace {

struct ResizeTest : ::testing::Test {
  Node node{{.cq_entries = 4, .with_channel = true}};
  Buffer buffer{node, 64};
  QueuePair pair{node};

  ResizeTest() { pair.connect(pair.address()); }
  void write(uint64_t wr_id) {
    ASSERT_EQ(Send(IBV_WR_RDMA_WRITE, wr_id).from(buffer, 0, 8).to(buffer.remote(32)).post(pair), 0);
  }
};

TEST_F(ResizeTest, KeepsOrderAndTakesMore) {
  for (uint64_t i = 0; i < 4; ++i) write(i);
  ASSERT_EQ(ibv_resize_cq(node.cq, 16), 0);
  EXPECT_GE(node.cq->cqe, 16);
  for (uint64_t i = 4; i < 16; ++i) write(i);
  ASSERT_EQ(ibv_resize_cq(node.cq, 64), 0);
  for (uint64_t i = 16; i < 40; ++i) write(i);
  const std::vector<ibv_wc> all = node.wait_completions(40);
  ASSERT_EQ(all.size(), 40u);
  for (uint64_t i = 0; i < 40; ++i) EXPECT_EQ(all[i].wr_id, i);
}

TEST_F(ResizeTest, ReceivesGoToTheNewRingToo) {
  ASSERT_EQ(ibv_resize_cq(node.cq, 64), 0);
  for (uint64_t i = 0; i < 20; ++i) {
    ASSERT_EQ(pair.post_receive(100 + i, buffer, 32, 8), 0);
    ASSERT_EQ(Send(IBV_WR_SEND, i).from(buffer, 0, 8).post(pair), 0);
  }
  EXPECT_EQ(node.wait_completions(40).size(), 40u);
}

TEST_F(ResizeTest, IsNotMadeTooSmallForWhatItHolds) {
  for (uint64_t i = 0; i < 3; ++i) write(i);
  EXPECT_EQ(ibv_resize_cq(node.cq, 2), EINVAL);
  EXPECT_EQ(ibv_resize_cq(node.cq, 0), EINVAL);
  EXPECT_EQ(node.wait_completions(3).size(), 3u);
  EXPECT_EQ(ibv_resize_cq(node.cq, 1), 0);
}

TEST_F(ResizeTest, GrowsWhileAnotherThreadPosts) {
  constexpr uint64_t kWrites = 600;
  std::atomic<uint64_t> polled{0};
  std::thread poster([&] {
    for (uint64_t i = 0; i < kWrites; ++i) {
      while (i - polled.load() >= 4) std::this_thread::yield();
      write(i);
    }
  });
  uint64_t expected = 0;
  for (int entries = 4; expected < kWrites; entries = std::min(entries * 2, 1 << 12)) {
    ASSERT_EQ(ibv_resize_cq(node.cq, entries), 0);
    for (int i = 0; i < 100 && expected < kWrites; ++i) {
      for (const ibv_wc& wc : node.wait_completions(1)) {
        EXPECT_EQ(wc.wr_id, expected++);
        polled.store(expected);
      }
    }
  }
  poster.join();
}

TEST_F(ResizeTest, StaysArmed) {
  ASSERT_EQ(ibv_req_notify_cq(node.cq, 0), 0);
  ASSERT_EQ(ibv_resize_cq(node.cq, 64), 0);
  write(1);
  pollfd readable{node.channel->fd, POLLIN, 0};
  ASSERT_EQ(poll(&readable, 1, 10000), 1);
  ibv_cq* cq = nullptr;
  void* cq_context = nullptr;
  ASSERT_EQ(ibv_get_cq_event(node.channel, &cq, &cq_context), 0);
  EXPECT_EQ(cq, node.cq);
  ibv_ack_cq_events(cq, 1);
}

}  // namespace
}  // namespace verbena::softverbs_test
