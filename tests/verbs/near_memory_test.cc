#include "verbs/near_memory.h"

#include <algorithm>

#include "support/fake_fixture.h"

namespace verbena::verbs {
namespace {

class NearMemoryTest : public FakeDeviceTest {};

// The fake has none of its own, as all devices but softverbs.
TEST_F(NearMemoryTest, IsTheHeapsWhereTheDeviceHasNone) {
  constexpr size_t kBytes = 10'000;
  NearMemory memory = take_near_memory(device(), kBytes);
  ASSERT_NE(memory, nullptr);
  EXPECT_EQ(memory.get_deleter().give_back, nullptr);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(memory.get()) % 64, 0U);
  EXPECT_TRUE(
      std::all_of(memory.get(), memory.get() + kBytes, [](std::byte byte) { return byte == std::byte{}; }));
}

}  // namespace
}  // namespace verbena::verbs
