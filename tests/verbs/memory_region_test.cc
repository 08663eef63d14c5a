#include "support/fake_fixture.h"
#include "verbs/library.h"

namespace verbena::verbs {
namespace {

class MemoryRegionTest : public FakeDeviceTest {
 protected:
  char memory_[256] = {};
};

TEST_F(MemoryRegionTest, AllowsWhatWasAskedFor) {
  auto region = MemoryRegion::register_memory(device(), memory_, sizeof(memory_), {.remote_write = true});
  ASSERT_TRUE(region);
  EXPECT_EQ(region->local_key(), 11U);
  EXPECT_EQ(region->remote_key(), 22U);
  EXPECT_EQ(record().last_access, unsigned{IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE});
  auto readable = MemoryRegion::register_memory(device(), memory_, sizeof(memory_),
                                                {.remote_read = true, .relaxed_ordering = true});
  ASSERT_TRUE(readable);
  EXPECT_EQ(record().last_access,
            unsigned{IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_RELAXED_ORDERING});
  EXPECT_TRUE(record().used_iova2);
  auto addable = MemoryRegion::register_memory(device(), memory_, sizeof(memory_), {.remote_atomic = true});
  ASSERT_TRUE(addable);
  EXPECT_EQ(record().last_access, unsigned{IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_ATOMIC});
}

TEST_F(MemoryRegionTest, DropsRelaxedOrderingWhereTheLibraryIsOld) {
  fake::Hooks& old_hooks = fake_hooks(FAKE_OLD_LIBRARY);
  old_hooks.script.devices = {make_card("mthca0")};
  settings_.library_choice = FAKE_OLD_LIBRARY;
  {
    Devices old_devices = discover();
    auto region = MemoryRegion::register_memory(*old_devices.at(0), memory_, sizeof(memory_),
                                                {.remote_write = true, .relaxed_ordering = true});
    ASSERT_TRUE(region);
    EXPECT_EQ(old_hooks.record.last_access, unsigned{IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE});
    EXPECT_FALSE(MemoryRegion::register_dmabuf(*old_devices.at(0), memory_, sizeof(memory_), 0, 3, {}));
    EXPECT_THAT(log_.warnings(), ElementsAre(HasSubstr("too old to have ibv_reg_dmabuf_mr")));
  }
  EXPECT_EQ(old_hooks.record.live_objects, 0);
  old_hooks.script = {};
}

TEST_F(MemoryRegionTest, RegistersADmabufAtItsOffset) {
  auto region =
      MemoryRegion::register_dmabuf(device(), memory_, sizeof(memory_), 4096, 3, {.remote_write = true});
  ASSERT_TRUE(region);
  EXPECT_EQ(record().last_offset, 4096U);
}

TEST_F(MemoryRegionTest, ExplainsARefusal) {
  script().failing_call = record().fallible_calls + 1;
  script().failing_errno = ENOMEM;
  const auto region = MemoryRegion::register_memory(device(), memory_, sizeof(memory_), {});
  ASSERT_FALSE(region);
  EXPECT_EQ(region.error().status, base::Status::kSystem);
  EXPECT_EQ(region.error().errno_value, ENOMEM);
  EXPECT_THAT(log_.warnings(),
              ElementsAre(AllOf(HasSubstr("mlx5_0:1"), HasSubstr("ulimit -l"), HasSubstr("256"))));
}

TEST_F(MemoryRegionTest, MovesWithoutALeak) {
  const int live_objects = record().live_objects;
  auto first = MemoryRegion::register_memory(device(), memory_, sizeof(memory_), {});
  auto second = MemoryRegion::register_memory(device(), memory_, sizeof(memory_), {});
  ASSERT_TRUE(first && second);
  MemoryRegion region = std::move(*first);
  EXPECT_EQ(record().live_objects, live_objects + 2);
  region = std::move(*second);  // releases the first
  EXPECT_EQ(record().live_objects, live_objects + 1);
  region = MemoryRegion();
  EXPECT_EQ(record().live_objects, live_objects);
}

}  // namespace
}  // namespace verbena::verbs
