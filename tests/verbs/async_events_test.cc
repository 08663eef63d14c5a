#include <chrono>
#include <thread>

#include "base/event_loop.h"
#include "support/fake_fixture.h"

namespace verbena::verbs {
namespace {

constexpr int kPatienceMs = 60'000;

class AsyncEventsTest : public FakeTest {
 protected:
  bool wait_for_acknowledged(int count) {
    for (int i = 0; i < kPatienceMs; ++i) {
      if (record().acknowledged_events >= count) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return false;
  }
  static bool wait_for_health(const Device& device, bool is_healthy) {
    for (int i = 0; i < kPatienceMs; ++i) {
      if (device.is_healthy() == is_healthy) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return false;
  }
};

TEST_F(AsyncEventsTest, FollowsItsOwnPort) {
  script().devices = {make_card("mlx5_0", 2)};
  const Devices devices = discover();
  ASSERT_EQ(devices.size(), 2U);
  hooks_.raise("mlx5_0", IBV_EVENT_PORT_ERR, 2, nullptr);
  EXPECT_TRUE(wait_for_health(*devices[1], false));
  EXPECT_TRUE(wait_for_acknowledged(2));  // the other context saw it too
  EXPECT_TRUE(devices[0]->is_healthy());
  EXPECT_THAT(log_.warnings(), testing::ElementsAre(AllOf(HasSubstr("mlx5_0:2"), HasSubstr("down"))));
  hooks_.raise("mlx5_0", IBV_EVENT_PORT_ACTIVE, 2, nullptr);
  EXPECT_TRUE(wait_for_health(*devices[1], true));
}

TEST_F(AsyncEventsTest, AFailedDeviceStaysFailed) {
  const Devices devices = discover();
  hooks_.raise("mlx5_0", IBV_EVENT_DEVICE_FATAL, 0, nullptr);
  EXPECT_TRUE(wait_for_health(*devices.at(0), false));
  hooks_.raise("mlx5_0", IBV_EVENT_PORT_ACTIVE, 1, nullptr);
  EXPECT_TRUE(wait_for_acknowledged(2));
  EXPECT_FALSE(devices[0]->is_healthy());
}

TEST_F(AsyncEventsTest, NamesTheQueuePairThatFailed) {
  const Devices devices = discover();
  ibv_qp pair{};
  pair.qp_num = 4711;
  hooks_.raise("mlx5_0", IBV_EVENT_QP_FATAL, 0, &pair);
  hooks_.raise("mlx5_0", IBV_EVENT_QP_ACCESS_ERR, 0, &pair);
  EXPECT_TRUE(wait_for_acknowledged(2));
  EXPECT_THAT(log_.warnings(), testing::SizeIs(2));
  EXPECT_THAT(log_.warnings(), Each(AllOf(HasSubstr("mlx5_0:1"), HasSubstr("queue pair 4711"))));
  EXPECT_TRUE(devices.at(0)->is_healthy());
}

TEST_F(AsyncEventsTest, ACompletionQueueThatOverranHasFailed) {
  const Devices devices = discover();
  auto queue = CompletionQueue::create(*devices.at(0), 64);
  auto other = CompletionQueue::create(*devices.at(0), 64);
  ASSERT_TRUE(queue && other);
  EXPECT_FALSE(queue->has_failed());
  hooks_.raise("mlx5_0", IBV_EVENT_CQ_ERR, 0, queue->get());
  EXPECT_TRUE(wait_for_acknowledged(1));
  EXPECT_TRUE(queue->has_failed());
  EXPECT_FALSE(other->has_failed());
}

TEST_F(AsyncEventsTest, IsSilentAboutNormalLife) {
  const Devices devices = discover();
  ibv_qp pair{};
  hooks_.raise("mlx5_0", IBV_EVENT_COMM_EST, 0, &pair);
  hooks_.raise("mlx5_0", IBV_EVENT_QP_LAST_WQE_REACHED, 0, &pair);
  hooks_.raise("mlx5_0", IBV_EVENT_CLIENT_REREGISTER, 1, nullptr);
  EXPECT_TRUE(wait_for_acknowledged(3));
  EXPECT_THAT(log_.warnings(), IsEmpty());
}

TEST_F(AsyncEventsTest, WarnsOfAddressesThatChange) {
  const Devices devices = discover();
  hooks_.raise("mlx5_0", IBV_EVENT_GID_CHANGE, 1, nullptr);
  EXPECT_TRUE(log_.wait_for_warning("GID table changed", kPatienceMs));
  EXPECT_TRUE(devices.at(0)->is_healthy());
}

TEST_F(AsyncEventsTest, NoticesADeviceThatWasUnpluggedWithoutSpinning) {
  const Devices devices = discover();
  hooks_.break_events("mlx5_0");
  EXPECT_TRUE(wait_for_health(*devices.at(0), false));
  EXPECT_TRUE(log_.wait_for_warning("is gone", kPatienceMs));
  const int reads = record().event_reads;
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_LE(record().event_reads, reads + 1);
}

TEST_F(AsyncEventsTest, StopsWatchingWithTheDevice) {
  const size_t before = base::EventLoop::instance().count_watched();
  {
    const Devices devices = discover();
    EXPECT_EQ(base::EventLoop::instance().count_watched(), before + 1);
  }
  EXPECT_EQ(base::EventLoop::instance().count_watched(), before);
}

}  // namespace
}  // namespace verbena::verbs
