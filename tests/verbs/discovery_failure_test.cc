// What the library refuses while devices are looked for.
#include "support/fake_fixture.h"
#include "verbs/library.h"

namespace verbena::verbs {
namespace {

class DiscoveryFailureTest : public FakeTest {};

TEST_F(DiscoveryFailureTest, SaysThatThereIsNoDevice) {
  script().devices.clear();
  const auto found = try_discover();
  ASSERT_FALSE(found);
  EXPECT_EQ(found.error().status, base::Status::kSystem);
  EXPECT_THAT(log_.warnings(),
              ElementsAre(AllOf(HasSubstr(FAKE_LIBRARY), HasSubstr("VERBENA_IBVERBS_LIB=softverbs"))));
}

TEST_F(DiscoveryFailureTest, SaysThatTheListFailed) {
  script().list_errno = ENOSYS;
  const auto found = try_discover();
  ASSERT_FALSE(found);
  EXPECT_EQ(found.error().errno_value, ENOSYS);
  EXPECT_THAT(log_.warnings(), ElementsAre(HasSubstr("cannot list")));
}

TEST_F(DiscoveryFailureTest, SaysThatNoPortIsActive) {
  script().devices[0].ports[0].state = IBV_PORT_DOWN;
  ASSERT_FALSE(try_discover());
  EXPECT_THAT(log_.warnings(), ElementsAre(HasSubstr("mlx5_0:1 (down, Ethernet)")));
}

TEST_F(DiscoveryFailureTest, LeavesOutADeviceThatCannotBeOpened) {
  script().devices = {make_card("mlx5_0"), make_card("mlx5_1")};
  script().devices[0].open_errno = EACCES;
  const Devices devices = discover();
  ASSERT_EQ(devices.size(), 1U);
  EXPECT_EQ(devices[0]->name(), "mlx5_1");
  EXPECT_THAT(log_.warnings(), ElementsAre(AllOf(HasSubstr("mlx5_0"), HasSubstr("/dev/infiniband"))));
}

TEST_F(DiscoveryFailureTest, NamesTheLimitThatKeepsADeviceFromBeingOpened) {
  script().devices = {make_card("mlx5_0"), make_card("mlx5_1")};
  script().devices[0].open_errno = EMFILE;
  script().devices[1].open_errno = ENOMEM;
  ASSERT_FALSE(try_discover());
  EXPECT_THAT(log_.warnings(), Contains(AllOf(HasSubstr("mlx5_0"), HasSubstr("ulimit -n"))));
  EXPECT_THAT(log_.warnings(), Contains(AllOf(HasSubstr("mlx5_1"), HasSubstr("ulimit -v"))));
  EXPECT_THAT(log_.warnings(), Not(Contains(HasSubstr("/dev/infiniband"))));
}

TEST_F(DiscoveryFailureTest, NamesALibraryThatIsIncomplete) {
  settings_.library_choice = FAKE_WITHOUT_SRQ_LIBRARY;
  ASSERT_FALSE(try_discover());
  EXPECT_THAT(log_.warnings(), ElementsAre(HasSubstr("lacks ibv_create_srq")));
}

// Each call in turn fails once: nothing is left behind, and a port either works or is named in the log.
TEST_F(DiscoveryFailureTest, LeaksNothingWhicheverCallFails) {
  script().devices = {make_card("mlx5_0", 2), make_card("mlx5_1")};
  ASSERT_EQ(discover().size(), 3U);
  const int calls = record().fallible_calls;
  ASSERT_GT(calls, 10);
  for (int failing = 1; failing <= calls; ++failing) {
    record().fallible_calls = 0;
    script().failing_call = failing;
    base::LogCapture log;
    size_t usable = 0;
    if (auto found = try_discover()) usable = found->size();
    EXPECT_LT(usable, 3U) << "call " << failing;
    EXPECT_THAT(log.warnings(), Not(IsEmpty())) << "call " << failing;
    EXPECT_EQ(record().live_objects, 0) << "call " << failing;
  }
}

TEST_F(DiscoveryFailureTest, LeaksNoQueueWhicheverCallFails) {
  const auto build = [](Device& device) {
    char memory[64];
    auto region = MemoryRegion::register_memory(device, memory, sizeof(memory), {});
    auto completions = CompletionQueue::create(device, 16);
    if (!region || !completions) return false;
    auto receives = SharedReceiveQueue::create(device, 16);
    if (!receives) return false;
    auto pair = QueuePair::create(device, *completions, {.send_depth = 16, .receive_queue = &*receives});
    return pair && pair->connect(device.address(), pair->address());
  };
  const Devices devices = discover();
  ASSERT_EQ(devices.size(), 1U);
  const int live_objects = record().live_objects;
  record().fallible_calls = 0;
  ASSERT_TRUE(build(*devices[0]));
  const int calls = record().fallible_calls;
  ASSERT_EQ(calls, 7);  // region, two queues, queue pair, three states
  for (int failing = 1; failing <= calls; ++failing) {
    record().fallible_calls = 0;
    script().failing_call = failing;
    base::LogCapture log;
    EXPECT_FALSE(build(*devices[0])) << "call " << failing;
    EXPECT_THAT(log.warnings(), testing::SizeIs(1)) << "call " << failing;
    EXPECT_EQ(record().live_objects, live_objects) << "call " << failing;
  }
}

}  // namespace
}  // namespace verbena::verbs
