// Memory that grows in place; the cases of the GPU run where there is one.
#include "base/growing_buffer.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>
#include <thread>
#include <vector>

#include "base/cuda_api.h"
#include "tests/base/log_capture.h"

namespace verbena::base {
namespace {

constexpr size_t kPageBytes = 4096;

// Pages of the range that have memory.
size_t count_present(const GrowingBuffer& buffer) {
  std::vector<unsigned char> present(buffer.max_bytes() / kPageBytes);
  EXPECT_EQ(mincore(buffer.host(), buffer.max_bytes(), present.data()), 0);
  size_t count = 0;
  for (const unsigned char page : present) count += page & 1;
  return count;
}

TEST(GrowingBuffer, HasMemoryAsFarAsItHasGrown) {
  auto buffer = GrowingBuffer::reserve(64 << 20);
  ASSERT_TRUE(buffer);
  madvise(buffer->host(), buffer->max_bytes(), MADV_NOHUGEPAGE);
  EXPECT_EQ(buffer->usable_bytes(), 0U);
  EXPECT_EQ(count_present(*buffer), 0U);
  char* const start = static_cast<char*>(buffer->host());
  for (const size_t pages : {3, 2, 10}) ASSERT_TRUE(buffer->grow(pages * kPageBytes));
  EXPECT_EQ(buffer->usable_bytes(), 10 * kPageBytes);
  EXPECT_EQ(count_present(*buffer), 10U);
  EXPECT_EQ(buffer->host(), start);
  for (size_t i = 0; i < 10 * kPageBytes; ++i) ASSERT_EQ(start[i], 0);
}

TEST(GrowingBuffer, KeepsWhatIsInIt) {
  auto buffer = GrowingBuffer::reserve(1 << 20);
  ASSERT_TRUE(buffer->grow(kPageBytes));
  std::memset(buffer->host(), 0x5a, kPageBytes);
  ASSERT_TRUE(buffer->grow(1 << 20));
  GrowingBuffer moved = std::move(*buffer);
  EXPECT_EQ(static_cast<char*>(moved.host())[kPageBytes - 1], 0x5a);
  EXPECT_EQ(static_cast<char*>(moved.host())[kPageBytes], 0);
}

TEST(GrowingBuffer, DoesNotGrowBeyondItsAddresses) {
  const LogCapture capture;
  auto buffer = GrowingBuffer::reserve(1 << 20);
  EXPECT_EQ(buffer->grow((1 << 20) + kPageBytes).status(), Status::kInternal);
  EXPECT_EQ(GrowingBuffer::reserve(size_t{1} << 62).error().status, Status::kSystem);
  EXPECT_EQ(capture.warnings().size(), 2U);
}

TEST(GrowingBufferGpu, PinsItsPartsForTheGpu) {
  const CudaApi* cuda = find_cuda();
  int gpus = 0;
  if (cuda == nullptr || cuda->cuInit(0) != CUDA_SUCCESS || cuda->cuDeviceGetCount(&gpus) != CUDA_SUCCESS ||
      gpus == 0) {
    GTEST_SKIP() << "no GPU";
  }
  CUdevice device = 0;
  CUcontext context = nullptr;
  ASSERT_EQ(cuda->cuDeviceGet(&device, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuda->cuDevicePrimaryCtxRetain(&context, device), CUDA_SUCCESS);
  ASSERT_EQ(cuda->cuCtxPushCurrent_v2(context), CUDA_SUCCESS);
  const LogCapture capture;
  {
    auto buffer = GrowingBuffer::reserve(8 << 20);
    ASSERT_TRUE(buffer);
    int is_by_parts = 0;
    EXPECT_EQ(cuda->cuDeviceGetAttribute(&is_by_parts,
                                         CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, device),
              CUDA_SUCCESS);
    EXPECT_EQ(buffer->usable_bytes(), is_by_parts != 0 ? 0 : buffer->max_bytes());
    auto* const start = static_cast<char*>(buffer->host());
    for (const size_t part : {1, 2, 5}) {
      ASSERT_TRUE(buffer->grow(part << 20));
      CUdeviceptr mapped = 0;  // the GPU's name of the last byte: one range, whatever its parts
      ASSERT_EQ(cuda->cuMemHostGetDevicePointer_v2(&mapped, start + (part << 20) - 1, 0), CUDA_SUCCESS);
      EXPECT_EQ(mapped, reinterpret_cast<uintptr_t>(buffer->device()) + (part << 20) - 1);
    }
    // From a thread without a context, as the last connection may go anywhere.
    std::thread([&] { buffer = GrowingBuffer(); }).join();
  }
  EXPECT_TRUE(capture.warnings().empty());
  CUcontext popped = nullptr;
  EXPECT_EQ(cuda->cuCtxPopCurrent_v2(&popped), CUDA_SUCCESS);
  EXPECT_EQ(popped, context);
  EXPECT_EQ(cuda->cuDevicePrimaryCtxRelease_v2(device), CUDA_SUCCESS);
}

}  // namespace
}  // namespace verbena::base
