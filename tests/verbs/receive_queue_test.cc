#include "support/fake_fixture.h"

namespace verbena::verbs {
namespace {

class SharedReceiveQueueTest : public FakeDeviceTest {
 protected:
  SharedReceiveQueueTest() : queue_(*SharedReceiveQueue::create(device(), 256)) {
    for (uint64_t i = 0; i < buffers_.size(); ++i) buffers_[i] = {&memory_[i], 1, 11, 1000 + i};
  }

  SharedReceiveQueue queue_;
  std::vector<ReceiveBuffer> buffers_ = std::vector<ReceiveBuffer>(70);
  char memory_[70] = {};
};

TEST_F(SharedReceiveQueueTest, PostsInOrderInPieces) {
  ASSERT_TRUE(queue_.post(buffers_));
  EXPECT_THAT(record().chain_lengths, ElementsAre(32, 32, 6));
  ASSERT_EQ(record().receives.size(), buffers_.size());
  for (size_t i = 0; i < buffers_.size(); ++i) {
    EXPECT_EQ(record().receives[i].wr_id, 1000 + i);
    EXPECT_EQ(record().receives[i].num_sge, 1);
    EXPECT_EQ(record().receive_addresses[i], reinterpret_cast<uintptr_t>(&memory_[i]));
  }
}

TEST_F(SharedReceiveQueueTest, AQueuePairHasOneOfItsOwnInstead) {
  auto completions = CompletionQueue::create(device(), 64);
  auto pair = QueuePair::create(device(), *completions, {.send_depth = 16, .receive_depth = 70});
  ASSERT_TRUE(pair);
  EXPECT_EQ(record().pair_attributes.cap.max_recv_wr, 70U);
  EXPECT_EQ(record().pair_attributes.srq, nullptr);
  ASSERT_TRUE(pair->post_receives(buffers_));
  EXPECT_THAT(record().chain_lengths, ElementsAre(32, 32, 6));
  EXPECT_EQ(record().receives[69].wr_id, 1069U);
  EXPECT_FALSE(QueuePair::create(device(), *completions, {.send_depth = 16, .receive_depth = 1025}));
  EXPECT_THAT(log_.warnings(), ElementsAre(HasSubstr("receive depth 1025, limit 1024")));
}

TEST_F(SharedReceiveQueueTest, PostsNothingForNothing) {
  ASSERT_TRUE(queue_.post({}));
  EXPECT_TRUE(record().chain_lengths.empty());
}

TEST_F(SharedReceiveQueueTest, ReportsARefusal) {
  script().rejected_request = 3;
  const auto outcome = queue_.post(buffers_);
  EXPECT_EQ(outcome.error().errno_value, ENOMEM);
  EXPECT_THAT(log_.warnings(), ElementsAre(HasSubstr("entry 3 of 32")));
}

TEST_F(SharedReceiveQueueTest, RefusesADepthBeyondTheDevice) {
  EXPECT_FALSE(SharedReceiveQueue::create(device(), 2049));
  EXPECT_THAT(log_.warnings(), ElementsAre(HasSubstr("2049")));
}

}  // namespace
}  // namespace verbena::verbs
