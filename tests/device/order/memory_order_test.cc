#include "verbena/device/memory_order.cuh"

#include <cstring>

#include "device/support/run_kernel.h"
#include "schedules.h"

namespace verbena::device {
namespace {

// An access moves its own bytes and no other.
template <typename T>
void check_size(T value) {
  alignas(16) unsigned char memory[48];
  memset(memory, 0xee, sizeof memory);
  auto* const place = reinterpret_cast<T*>(memory + 16);
  emulator::run_kernel(0, 1, 1, [&] {
    store<Order::kWeak, Scope::kThreads>(place, value);
    const T loaded = load<Order::kWeak, Scope::kThreads, Cache::kNonCoherent>(place);
    require(memcmp(&loaded, &value, sizeof value) == 0, "the value");
    store_release<Scope::kSystem>(place, value);
    const T acquired = load_acquire<Scope::kSystem>(place);
    require(memcmp(&acquired, &value, sizeof value) == 0, "the ordered value");
  });
  for (size_t i = 0; i < sizeof memory; ++i) {
    if (i < 16 || i >= 16 + sizeof value) {
      EXPECT_EQ(memory[i], 0xee) << i;
    }
  }
}

TEST(MemoryOrder, MovesEverySizeAndType) {
  check_size<uint8_t>(0x12);
  check_size<int8_t>(-3);
  check_size<uint16_t>(0x1234);
  check_size<uint32_t>(0x12345678);
  check_size<float>(1.5f);
  check_size<uint64_t>(0x123456789abcdef0);
  check_size<double>(-2.25);
  check_size<Vector16>({1, 2, 3, 4});
}

class Passing : public EverySchedule {};
INSTANTIATE_TEST_SUITE_P(Seeds, Passing, kSchedules);

// ThreadSanitizer looks on: without the edge that the orders give, the weak accesses are a race.
TEST_P(Passing, ReleaseAndAcquireHandOverWeakData) {
  Vector16 data{};
  uint64_t flag = 0;
  emulator::run_kernel(GetParam(), 2, 1, [&] {
    if (block_index() == 0) {
      store<Order::kWeak, Scope::kThreads>(&data, Vector16{1, 2, 3, 4});
      store_release<Scope::kGpu>(&flag, 1);
    } else {
      while (load_acquire<Scope::kGpu>(&flag) == 0) pause(100);
      require(load<Order::kWeak, Scope::kThreads>(&data).w == 4, "the data");
    }
  });
}

TEST_P(Passing, FencesAroundRelaxedAccessesDoTheSame) {
  uint32_t data = 0, flag = 0;
  World world(GetParam());
  const auto write = [&] {
    store<Order::kWeak, Scope::kThreads>(&data, 7);
    fence<Order::kAcquireRelease, Scope::kSystem>();
    store_relaxed<Scope::kSystem>(&flag, 1);
  };
  const auto read = [&] {
    while (load_relaxed<Scope::kSystem>(&flag) == 0) pause(100);
    fence<Order::kSequential, Scope::kSystem>();
    require(load<Order::kWeak, Scope::kThreads>(&data) == 7, "the data");
  };
  world.add_grid(0, 1, 1, write);
  world.add_grid(1, 1, 1, read);
  EXPECT_EQ(world.run(), "");
}

}  // namespace
}  // namespace verbena::device
