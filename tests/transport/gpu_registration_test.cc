// Which registrations of GPU memory share a region, where the driver names every allocation
// (support/naming_cuda.cc). The memory is the host's: what is asked of the devices counts.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/cuda_driver.h"
#include "transport/memory/registration.h"
#include "transport/support/faulty_devices.h"

namespace verbena::transport {
namespace {

using verbs::faulty::Hooks;
using Made = std::unique_ptr<Registration>;

constexpr size_t kPageBytes = 4096;
constexpr size_t kAllocationPages = 8;

class GpuRegistrationTest : public testing::Test {
 protected:
  static constexpr int kByPointer = -1;

  GpuRegistrationTest() {
    EXPECT_NE(driver_, nullptr);
    const auto address = reinterpret_cast<uintptr_t>(storage_.data());
    constexpr size_t kAllocationBytes = kAllocationPages * kPageBytes;
    memory_ = storage_.data() + (kAllocationBytes - address % kAllocationBytes);
  }
  ~GpuRegistrationTest() override { EXPECT_EQ(regions(), 0); }

  Made make(size_t first, size_t pages, int fd = kByPointer) {
    return take(register_on_rails(host_.nic(), memory_ + first * kPageBytes, pages * kPageBytes, true, fd, 0),
                "a registration");
  }
  int regions() const { return hooks_.live_regions - regions_before_; }

  // Already loaded when the plugin asks for a libcuda.so.1; a sanitizer would not look beside the test.
  void* const driver_ = dlopen(NAMING_CUDA, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  Hooks& hooks_ = find_hooks();
  Host host_{choose_faulty_devices()};
  std::vector<std::byte> storage_ = std::vector<std::byte>(4 * kAllocationPages * kPageBytes);
  std::byte* memory_ = nullptr;
  const int regions_before_ = hooks_.live_regions;
};

TEST_F(GpuRegistrationTest, TheDriverNamesAllocations) {
  const uint64_t first = base::find_gpu_allocation(memory_);
  EXPECT_NE(first, 0U);
  EXPECT_EQ(base::find_gpu_allocation(memory_ + kAllocationPages * kPageBytes - 1), first);
  EXPECT_NE(base::find_gpu_allocation(memory_ + kAllocationPages * kPageBytes), first);
}

TEST_F(GpuRegistrationTest, PartsOfOneAllocationShare) {
  const Made whole = make(0, kAllocationPages), same = make(0, kAllocationPages), part = make(3, 2);
  EXPECT_EQ(regions(), 1);
}

TEST_F(GpuRegistrationTest, PartsOfSeveralAllocationsDoNot) {
  const Made spanning = make(4, kAllocationPages), same = make(4, kAllocationPages);
  EXPECT_EQ(regions(), 1);
  const Made start = make(4, 1);
  EXPECT_EQ(regions(), 2);
  const Made end = make(kAllocationPages, 2);
  EXPECT_EQ(regions(), 3);
}

// As in NCCL: a separate descriptor for every registration.
TEST_F(GpuRegistrationTest, DmabufsOfOneAllocationShare) {
  const int first = memfd_create("first", 0), second = memfd_create("second", 0);
  ASSERT_TRUE(first >= 0 && second >= 0);
  {
    const Made whole = make(0, kAllocationPages, first), same = make(0, kAllocationPages, second),
               part = make(1, 2, second);
    EXPECT_EQ(regions(), 1);
    const Made pointer = make(0, kAllocationPages);
    EXPECT_EQ(regions(), 2);
  }
  close(first);
  close(second);
}

}  // namespace
}  // namespace verbena::transport
