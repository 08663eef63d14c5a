// Memory of this machine: plain without a GPU; the cases of the GPU run where there is one.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "base/cuda_api.h"
#include "base/cuda_driver.h"
#include "tests/base/log_capture.h"

namespace verbena::base {
namespace {

constexpr size_t kPageBytes = 4096;
constexpr size_t kLargeBytes = 4 << 20;  // the driver gives it back to the system when it is freed

bool is_zero(const void* memory, size_t length_bytes) {
  const char* bytes = static_cast<const char*>(memory);
  for (size_t i = 0; i < length_bytes; ++i) {
    if (bytes[i] != 0) return false;
  }
  return true;
}

bool is_page_aligned(const void* address) {
  return reinterpret_cast<uintptr_t>(address) % kPageBytes == 0;
}

TEST(Buffer, WithoutACurrentContextIsPlainMemory) {
  ASSERT_EQ(find_current_gpu(), kNoGpu);
  for (const Place place : {Place::kHost, Place::kDevice}) {
    Result<Buffer> buffer = Buffer::allocate(place, 5000);
    ASSERT_TRUE(buffer);
    EXPECT_EQ(buffer->length_bytes(), 2 * kPageBytes);
    EXPECT_EQ(buffer->host(), buffer->device());
    EXPECT_TRUE(is_page_aligned(buffer->host()));
    EXPECT_FALSE(buffer->is_gpu_memory());
    EXPECT_TRUE(is_zero(buffer->host(), buffer->length_bytes()));
    EXPECT_EQ(find_owning_gpu(buffer->host()), kNoGpu);
    std::memset(buffer->host(), 0xff, buffer->length_bytes());
  }
}

TEST(Buffer, OfNothingIsEmpty) {
  const Buffer buffer;
  EXPECT_EQ(buffer.host(), nullptr);
  EXPECT_EQ(buffer.device(), nullptr);
  EXPECT_EQ(buffer.length_bytes(), 0u);
  EXPECT_FALSE(buffer.is_gpu_memory());
}

TEST(Buffer, RefusesImpossibleLengths) {
  const LogCapture capture;
  EXPECT_EQ(Buffer::allocate(Place::kHost, 0).error().status, Status::kInvalidArgument);
  EXPECT_EQ(Buffer::allocate(Place::kHost, size_t{1} << 62).error().status, Status::kSystem);
  EXPECT_EQ(Buffer::allocate(Place::kHost, SIZE_MAX).error().status, Status::kInvalidArgument);
  EXPECT_EQ(capture.warnings().size(), 3u);
}

TEST(Buffer, Moves) {
  Buffer first = *Buffer::allocate(Place::kHost, kPageBytes);
  void* const memory = first.host();
  Buffer second = std::move(first);
  EXPECT_EQ(second.host(), memory);
  EXPECT_EQ(first.host(), nullptr);  // NOLINT: a moved-from buffer is empty
  second = *Buffer::allocate(Place::kHost, kPageBytes);
  EXPECT_NE(second.host(), nullptr);
  second = Buffer();
  EXPECT_EQ(second.length_bytes(), 0u);
}

TEST(Buffer, IsWrittenInside) {
  const Buffer buffer = *Buffer::allocate(Place::kHost, kPageBytes);
  const uint64_t value = 0x0123456789abcdef;
  ASSERT_TRUE(write_buffer(buffer, 24, &value, sizeof value));
  EXPECT_EQ(std::memcmp(static_cast<char*>(buffer.host()) + 24, &value, sizeof value), 0);
  EXPECT_TRUE(is_zero(buffer.host(), 24));
  EXPECT_TRUE(write_buffer(buffer, kPageBytes, nullptr, 0));
}

TEST(Buffer, RefusesWritesPastItsEnd) {
  const LogCapture capture;
  const Buffer buffer = *Buffer::allocate(Place::kHost, kPageBytes);
  const uint64_t value = 1;
  EXPECT_EQ(write_buffer(buffer, kPageBytes - 7, &value, 8).status(), Status::kInternal);
  EXPECT_EQ(write_buffer(buffer, SIZE_MAX, &value, 8).status(), Status::kInternal);
  EXPECT_EQ(write_buffer(Buffer(), 0, &value, 8).status(), Status::kInternal);
}

// Makes the first GPU's primary context current, as an application would.
class GpuBufferTest : public ::testing::Test {
 protected:
  void SetUp() override {
    cuda_ = find_cuda();
    int gpus = 0;
    if (cuda_ == nullptr || cuda_->cuInit(0) != CUDA_SUCCESS ||
        cuda_->cuDeviceGetCount(&gpus) != CUDA_SUCCESS || gpus == 0) {
      GTEST_SKIP() << "no GPU";
    }
    ASSERT_EQ(cuda_->cuDeviceGet(&device_, 0), CUDA_SUCCESS);
    ASSERT_EQ(cuda_->cuDevicePrimaryCtxRetain(&context_, device_), CUDA_SUCCESS);
    ASSERT_EQ(cuda_->cuCtxPushCurrent_v2(context_), CUDA_SUCCESS);
  }
  void TearDown() override {
    if (context_ == nullptr) return;
    CUcontext popped = nullptr;
    EXPECT_EQ(cuda_->cuCtxPopCurrent_v2(&popped), CUDA_SUCCESS);
    EXPECT_EQ(popped, context_) << "a call left another context current";
    EXPECT_EQ(cuda_->cuDevicePrimaryCtxRelease_v2(device_), CUDA_SUCCESS);
  }

  // The plugin itself never copies this way, so its table has no such function.
  static CUresult copy_to_host(void* target, const void* source, size_t length_bytes) {
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    using Copy = CUresult (*)(void*, CUdeviceptr, size_t);
    const auto copy = reinterpret_cast<Copy>(dlsym(library, "cuMemcpyDtoH_v2"));
    return copy(target, reinterpret_cast<uintptr_t>(source), length_bytes);
  }

  const CudaApi* cuda_ = nullptr;
  CUdevice device_ = 0;
  CUcontext context_ = nullptr;
};

TEST_F(GpuBufferTest, HostMemoryIsPinnedAndMapped) {
  ASSERT_EQ(find_current_gpu(), 0);
  const Buffer buffer = *Buffer::allocate(Place::kHost, 5000);
  EXPECT_TRUE(is_page_aligned(buffer.host()));
  EXPECT_EQ(buffer.host(), buffer.device()) << "unified addressing";
  EXPECT_TRUE(is_zero(buffer.host(), buffer.length_bytes()));
  EXPECT_FALSE(buffer.is_gpu_memory());
  EXPECT_EQ(find_owning_gpu(buffer.host()), kNoGpu) << "pinned memory is host memory";
}

TEST_F(GpuBufferTest, DeviceMemoryIsZeroAlignedAndWritten) {
  const Buffer buffer = *Buffer::allocate(Place::kDevice, 5000);
  ASSERT_TRUE(buffer.is_gpu_memory());
  EXPECT_TRUE(is_page_aligned(buffer.device()));
  EXPECT_EQ(find_owning_gpu(buffer.device()), 0);
  const uint64_t value = ~uint64_t{0};
  ASSERT_TRUE(write_buffer(buffer, 16, &value, sizeof value));
  std::vector<uint64_t> copy(buffer.length_bytes() / 8, 1);
  ASSERT_EQ(copy_to_host(copy.data(), buffer.device(), buffer.length_bytes()), CUDA_SUCCESS);
  for (size_t i = 0; i < copy.size(); ++i) EXPECT_EQ(copy[i], i == 2 ? value : 0) << i;
}

TEST_F(GpuBufferTest, IsFreedAndWrittenByAThreadWithoutContext) {
  const LogCapture capture;
  auto host = std::make_unique<Buffer>(*Buffer::allocate(Place::kHost, kPageBytes));
  auto device = std::make_unique<Buffer>(*Buffer::allocate(Place::kDevice, kLargeBytes));
  void* const address = device->device();
  std::thread([&] {
    const uint32_t value = 1;
    EXPECT_EQ(find_current_gpu(), kNoGpu);
    EXPECT_TRUE(write_buffer(*device, 0, &value, sizeof value));
    host.reset();
    device.reset();
    EXPECT_EQ(find_current_gpu(), kNoGpu);
  }).join();
  EXPECT_EQ(find_owning_gpu(address), kNoGpu) << "still allocated";
  EXPECT_TRUE(capture.warnings().empty());
}

}  // namespace
}  // namespace verbena::base
