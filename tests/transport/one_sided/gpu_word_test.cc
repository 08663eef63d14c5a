// Adds to words in memory of a GPU, which the CPU does not reach: over a stand-in for CUDA's driver
// (tests/softverbs/fake_cuda.cc), on a device without atomics.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include "transport/one_sided/support/group.h"

// LeakSanitizer of gcc 12 fails on thread-local memory of libraries that were loaded later, such as the
// stand-in for CUDA's driver.
extern "C" __attribute__((visibility("default"))) int __lsan_is_turned_off() {
  return 1;
}

namespace verbena::transport {
namespace {

using Pointer = unsigned long long;

template <typename... Arguments>
bool call(const char* name, Arguments... arguments) {
  void* const library = dlopen("libcuda.so.1", RTLD_NOW);
  void* const function = library == nullptr ? nullptr : dlsym(library, name);
  return function != nullptr && reinterpret_cast<int (*)(Arguments...)>(function)(arguments...) == 0;
}

// Each former value comes back once, and a put before an add is there with it.
TEST(OneSidedGpuWordTest, AddsToWordsOfAGpuSumUp) {
  constexpr size_t kBytes = 65536, kPut = 4096;
  constexpr uint32_t kGpuRegion = 5;
  constexpr uint64_t kAdds = 200;
  void* context = nullptr;
  Pointer memory = 0;
  std::vector<std::byte> image(kBytes);
  ASSERT_TRUE(call("cuInit", 0U) && call("cuDevicePrimaryCtxRetain", &context, 0));
  ASSERT_TRUE(call("cuCtxSetCurrent", context));
  ASSERT_TRUE(call("cuMemAlloc_v2", &memory, kBytes));
  ASSERT_TRUE(call("cuMemcpyHtoD_v2", memory, static_cast<const void*>(image.data()), kBytes));

  auto ranks = make_group(2, {.lanes = 2});
  EXPECT_FALSE(ranks[0]->endpoint().has_atomics());
  drive_together(ranks);
  std::string error;
  ASSERT_TRUE(ranks[1]->endpoint().add_region(
      kGpuRegion, {.address = reinterpret_cast<void*>(memory), .bytes = kBytes}, &error))
      << error;
  for (const auto& rank : ranks) {
    ASSERT_TRUE(rank->endpoint().add_remote_region(1, kGpuRegion,
                                                   ranks[1]->endpoint().region_address(kGpuRegion), &error))
        << error;
  }
  fill(ranks[0]->memory().first(kPut), 3);
  std::vector<bool> seen(2 * kAdds);
  for (uint64_t i = 0; i < kAdds; ++i) {
    for (const auto& rank : ranks) {
      const auto lane = static_cast<uint32_t>(i % 2);
      if (rank->rank() == 0) {
        rank->insist([&] { return rank->endpoint().put({1, lane, kRegion, kGpuRegion, 0, 8192, kPut}, 0); });
      }
      rank->insist([&] { return rank->endpoint().add_word({1, lane, kGpuRegion, 64}, 1, i + 1); });
    }
  }
  for (const auto& rank : ranks) {
    EXPECT_TRUE(rank->drain(1));
    for (const EndpointCompletion& told : rank->told()) {
      if (told.cookie == 0) continue;
      ASSERT_LT(told.value, seen.size());
      EXPECT_FALSE(seen[told.value]) << told.value;
      seen[told.value] = true;
    }
  }
  EXPECT_EQ(std::count(seen.begin(), seen.end(), true), static_cast<ptrdiff_t>(2 * kAdds));
  ASSERT_TRUE(call("cuMemcpyDtoH_v2", static_cast<void*>(image.data()), memory, kBytes));
  EXPECT_EQ(*reinterpret_cast<uint64_t*>(&image[64]), 2 * kAdds);
  EXPECT_TRUE(holds(std::span(image).subspan(8192, kPut), 3));
}

}  // namespace
}  // namespace verbena::transport
