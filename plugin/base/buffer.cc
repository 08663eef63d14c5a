// Implements Buffer and write_buffer of cuda_driver.h: memory that a GPU, a NIC and the CPU share.
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/cuda_api.h"
#include "base/cuda_driver.h"
#include "base/log.h"
#include "base/private_stream.h"

namespace verbena::base {
namespace {

size_t page_bytes() {
  static const size_t bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

size_t round_up_to_page(size_t value) {
  return (value + page_bytes() - 1) / page_bytes() * page_bytes();
}

CUdeviceptr to_cuda(const void* address) {
  return reinterpret_cast<uintptr_t>(address);
}

void* from_cuda(CUdeviceptr address) {
  return reinterpret_cast<void*>(static_cast<uintptr_t>(address));
}

void* align_to_page(void* address) {
  return from_cuda(round_up_to_page(to_cuda(address)));
}

Error fail_cuda(const char* what, CUresult result, size_t length_bytes) {
  return fail(Status::kCuda, "buffer: %s: %s (result %d, length %zu bytes)", what, describe_cuda(result),
              result, length_bytes);
}

Result<void*> map_plain(size_t length_bytes) {
  void* memory = mmap(nullptr, length_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory != MAP_FAILED) return memory;
  return fail_errno(Status::kSystem, errno, "buffer: cannot map %zu bytes", length_bytes);
}

Result<void*> allocate_pinned(const CudaApi& cuda, size_t length_bytes) {
  void* memory = nullptr;
  const CUresult result =
      cuda.cuMemHostAlloc(&memory, length_bytes, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP);
  if (result != CUDA_SUCCESS) return fail_cuda("cannot pin host memory", result, length_bytes);
  std::memset(memory, 0, length_bytes);
  return memory;
}

Result<void*> allocate_on_gpu(const CudaApi& cuda, size_t length_bytes) {
  CUdeviceptr memory = 0;
  CUresult result = cuda.cuMemAlloc_v2(&memory, length_bytes);
  if (result != CUDA_SUCCESS) return fail_cuda("cannot allocate GPU memory", result, length_bytes);
  result = PrivateStream(cuda).run(
      [&](CUstream stream) { return cuda.cuMemsetD8Async(memory, 0, length_bytes, stream); });
  if (result == CUDA_SUCCESS) return from_cuda(memory);
  cuda.cuMemFree_v2(memory);
  return fail_cuda("cannot clear GPU memory", result, length_bytes);
}

}  // namespace

Result<Buffer> Buffer::allocate(Place place, size_t length_bytes) {
  if (length_bytes == 0 || length_bytes > SIZE_MAX / 2) {
    return fail(Status::kInvalidArgument, "buffer: cannot allocate %zu bytes", length_bytes);
  }
  Buffer buffer;
  buffer.length_bytes_ = round_up_to_page(length_bytes);
  buffer.gpu_ = find_current_gpu();
  if (buffer.gpu_ == kNoGpu) {
    const Result<void*> memory = map_plain(buffer.length_bytes_);
    if (!memory) return memory.error();
    buffer.allocation_ = *memory;
    buffer.host_ = *memory;
    buffer.device_ = *memory;
    return buffer;
  }
  const CudaApi& cuda = *find_cuda();
  const RelaxedCapture relaxed(cuda);
  const bool on_gpu = place == Place::kDevice;
  const size_t room_bytes = buffer.length_bytes_ + page_bytes();
  const Result<void*> memory = on_gpu ? allocate_on_gpu(cuda, room_bytes) : allocate_pinned(cuda, room_bytes);
  if (!memory) return memory.error();
  buffer.allocation_ = *memory;
  buffer.device_ = align_to_page(*memory);
  if (on_gpu) return buffer;
  buffer.host_ = buffer.device();
  CUdeviceptr device = 0;
  const CUresult result = cuda.cuMemHostGetDevicePointer_v2(&device, buffer.host_, 0);
  if (result != CUDA_SUCCESS) return fail_cuda("host memory has no GPU address", result, length_bytes);
  buffer.device_ = from_cuda(device);
  return buffer;
}

Buffer::~Buffer() {
  if (allocation_ == nullptr) return;
  if (gpu_ == kNoGpu) {
    munmap(allocation_, length_bytes_);
    return;
  }
  const CudaApi& cuda = *find_cuda();
  const RelaxedCapture relaxed(cuda);
  const OwningContext owner(cuda, to_cuda(allocation_));
  if (!owner) return;  // the application destroyed the context, and the driver freed its memory
  const CUresult result =
      is_gpu_memory() ? cuda.cuMemFree_v2(to_cuda(allocation_)) : cuda.cuMemFreeHost(allocation_);
  if (result != CUDA_SUCCESS)
    log_warn("buffer: cannot free memory: %s (result %d)", describe_cuda(result), result);
}

Outcome write_buffer(const Buffer& target, size_t offset_bytes, const void* source, size_t length_bytes) {
  if (offset_bytes > target.length_bytes() || length_bytes > target.length_bytes() - offset_bytes) {
    return fail(Status::kInternal,
                "buffer: cannot write past the end (offset %zu, length %zu bytes, buffer length %zu bytes)",
                offset_bytes, length_bytes, target.length_bytes());
  }
  if (!target.is_gpu_memory()) {
    if (length_bytes == 0) return {};
    // No fence is needed, because a kernel launch orders the thread's earlier stores.
    std::memcpy(static_cast<char*>(target.host()) + offset_bytes, source, length_bytes);
    return {};
  }
  const CudaApi& cuda = *find_cuda();
  const RelaxedCapture relaxed(cuda);
  const OwningContext owner(cuda, to_cuda(target.device()));
  if (!owner) return fail(Status::kCuda, "buffer: cannot write GPU memory: its CUDA context was destroyed");
  const CUresult result = PrivateStream(cuda).run([&](CUstream stream) {
    return cuda.cuMemcpyHtoDAsync_v2(to_cuda(target.device()) + offset_bytes, source, length_bytes, stream);
  });
  if (result != CUDA_SUCCESS) return fail_cuda("cannot write GPU memory", result, length_bytes);
  return {};
}

}  // namespace verbena::base
