// Multicast addresses of three emulated GPUs: loads that combine, stores and updates that reach all.
#include "verbena/device/multimem.cuh"

#include <gtest/gtest.h>

#include <array>

#include "device/emulator/world.h"

namespace verbena::device_test {
namespace {

using device::Bfloat16;
using device::Half;
using device::Operation;
using emulator::require;
using emulator::World;

constexpr uint64_t kBegin = uint64_t{1} << 44;  // of the multicast addresses
constexpr size_t kGpus = 3;

struct alignas(16) Memory {
  uint8_t bytes[256];
};

class MultimemTest : public testing::Test {
 protected:
  MultimemTest() { world_.add_multicast(kBegin, sizeof(Memory), {&gpus_[0], &gpus_[1], &gpus_[2]}); }

  template <typename T>
  T* at(size_t gpu, size_t offset_bytes = 0) {
    return reinterpret_cast<T*>(gpus_[gpu].bytes + offset_bytes);
  }
  template <typename T>
  static T* everywhere(size_t offset_bytes = 0) {
    return reinterpret_cast<T*>(kBegin + offset_bytes);
  }
  void run(const std::function<void()>& kernel) {
    world_.add_grid(0, 1, 1, kernel);
    EXPECT_EQ(world_.run(), "");
  }

  std::array<Memory, kGpus> gpus_{};
  World world_;
};

TEST_F(MultimemTest, LoadsCombineWords) {
  const std::array<int32_t, kGpus> small = {-7, 4, 9};
  const std::array<uint64_t, kGpus> large = {0xf0f, 0x3c3, ~uint64_t{0}};
  for (size_t gpu = 0; gpu < kGpus; ++gpu) {
    *at<int32_t>(gpu, 4) = small[gpu];
    *at<uint64_t>(gpu, 8) = large[gpu];
  }
  run([] {
    using device::multimem_load_reduce;
    const auto* const word = everywhere<int32_t>(4);
    const auto* const wide = everywhere<uint64_t>(8);
    require(multimem_load_reduce<Operation::kAdd>(word) == 6, "a sum");
    require(multimem_load_reduce<Operation::kMin>(word) == -7, "a signed minimum");
    require(multimem_load_reduce<Operation::kMax>(word) == 9, "a maximum");
    require(multimem_load_reduce<Operation::kMax>(wide) == ~uint64_t{0}, "an unsigned maximum");
    require(multimem_load_reduce<Operation::kAdd>(wide) == 0xf0f + 0x3c3 - 1, "a sum that wraps");
    require(multimem_load_reduce<Operation::kAnd>(wide) == (0xf0f & 0x3c3), "and");
    require(multimem_load_reduce<Operation::kOr>(wide) == ~uint64_t{0}, "or");
    require(multimem_load_reduce<Operation::kXor>(wide) == ~uint64_t{0xf0f ^ 0x3c3}, "xor");
  });
}

TEST_F(MultimemTest, StoresAndUpdatesReachAll) {
  for (size_t gpu = 0; gpu < kGpus; ++gpu) *at<uint64_t>(gpu, 16) = 10 * gpu;
  run([] {
    device::multimem_store(everywhere<uint32_t>(4), 77);
    device::multimem_add(everywhere<uint64_t>(16), 5);
    device::multimem_add(everywhere<uint32_t>(4), ~0u);
    device::multimem_store(everywhere<device::Vector16>(32), {1, 2, 3, 4});
  });
  for (size_t gpu = 0; gpu < kGpus; ++gpu) {
    EXPECT_EQ(*at<uint32_t>(gpu, 4), 76u);
    EXPECT_EQ(*at<uint32_t>(gpu), 0u) << "nothing beside it";
    EXPECT_EQ(*at<uint64_t>(gpu, 16), 10 * gpu + 5);
    EXPECT_EQ(at<uint32_t>(gpu, 32)[3], 4u);
  }
}

// Sums in float, rounded once: in Half, 2048 + 1 + 1 would stay 2048.
TEST_F(MultimemTest, NumbersAreSummedInFloat) {
  const auto fill = [&](auto type, size_t offset_bytes) {
    using T = decltype(type);
    for (size_t gpu = 0; gpu < kGpus; ++gpu)
      for (size_t i = 0; i < 16 / sizeof(T); ++i)
        at<T>(gpu, offset_bytes)[i] = device::narrow<T>(gpu == 0 ? 2048.0f : 1.0f);
  };
  fill(float{}, 0), fill(Half{}, 16), fill(Bfloat16{}, 32), fill(Half{}, 48), fill(float{}, 64);
  run([] {
    const auto floats = device::multimem_load_sum(everywhere<float>());
    require(__builtin_bit_cast(float, floats.units[3]) == 2050.0f, "float");
    const auto halves = device::multimem_load_sum(everywhere<Half>(16));
    require(halves.units[0] ==
                (device::narrow<Half>(2050).bits | uint32_t{device::narrow<Half>(2050).bits} << 16),
            "half");
    const auto brains = device::multimem_load_sum(everywhere<Bfloat16>(32));
    require((brains.units[2] & 0xffff) == device::narrow<Bfloat16>(2050).bits, "bfloat16, rounded");
    device::multimem_store_packed(everywhere<Half>(80), halves);
    device::multimem_add_packed(everywhere<Half>(48), halves);
    device::multimem_add_packed(everywhere<float>(64), floats);
    device::fence_multicast();
  });
  for (size_t gpu = 0; gpu < kGpus; ++gpu) {
    EXPECT_EQ(device::widen(at<Half>(gpu, 80)[7]), 2050);
    EXPECT_EQ(device::widen(at<Half>(gpu, 48)[1]), gpu == 0 ? 4096 : 2052) << "rounded to even";
    EXPECT_EQ(at<float>(gpu, 64)[2], gpu == 0 ? 4098 : 2051);
  }
}

TEST_F(MultimemTest, OtherAddressesFailTheRun) {
  world_.add_grid(0, 1, 1, [] { device::multimem_store(everywhere<uint32_t>(sizeof(Memory)), 1); });
  EXPECT_NE(world_.run().find("no multicast address"), std::string::npos);
}

}  // namespace
}  // namespace verbena::device_test
