#include "base/growing_buffer.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/cuda_api.h"
#include "base/log.h"

namespace verbena::base {
namespace {

#ifdef MADV_POPULATE_WRITE
constexpr int kPopulate = MADV_POPULATE_WRITE;
#else
constexpr int kPopulate = 23;  // Linux 5.14
#endif

CUdeviceptr get_cuda_address(const void* address) {
  return reinterpret_cast<uintptr_t>(address);
}

bool can_pin_parts(int gpu) {
  const CudaApi* cuda = find_cuda();
  int uses_host_pointers = 0;
  return cuda->cuMemHostRegister_v2 != nullptr && cuda->cuMemHostUnregister != nullptr &&
         cuda->cuDeviceGetAttribute(&uses_host_pointers,
                                    CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM,
                                    gpu) == CUDA_SUCCESS &&
         uses_host_pointers != 0;
}

// Allocates the pages now, so that a lack of memory is an error of this call, and not a fault when a peer's
// message arrives.
Outcome populate(void* memory, size_t length_bytes) {
  if (madvise(memory, length_bytes, kPopulate) == 0) return {};
  if (errno != EINVAL) {
    return fail_errno(Status::kSystem, errno, "buffer: cannot allocate %zu bytes", length_bytes);
  }
  std::memset(memory, 0, length_bytes);
  return {};
}

}  // namespace

Result<GrowingBuffer> GrowingBuffer::reserve(size_t max_bytes) {
  GrowingBuffer buffer;
  const int gpu = find_current_gpu();
  buffer.is_pinned_ = gpu != kNoGpu;
  if (buffer.is_pinned_ && !can_pin_parts(gpu)) {
    auto whole = Buffer::allocate(Place::kHost, max_bytes);
    if (!whole) return whole.error();
    buffer.whole_ = std::move(*whole);
    buffer.host_ = buffer.whole_.host();
    buffer.device_ = buffer.whole_.device();
    buffer.max_bytes_ = buffer.whole_.length_bytes();
    buffer.usable_bytes_ = buffer.whole_.length_bytes();
    return buffer;
  }
  void* memory =
      mmap(nullptr, max_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    return fail_errno(Status::kSystem, errno,
                      "buffer: cannot reserve %zu bytes of address space (check `ulimit -v`)", max_bytes);
  }
  buffer.host_ = memory;
  buffer.device_ = memory;
  buffer.max_bytes_ = max_bytes;
  return buffer;
}

Outcome GrowingBuffer::grow(size_t length_bytes) {
  if (length_bytes <= usable_bytes_) return {};
  if (length_bytes > max_bytes_) {
    return fail(Status::kInternal, "buffer: cannot grow to %zu bytes: the maximum is %zu bytes", length_bytes,
                max_bytes_.get());
  }
  const size_t more_bytes = length_bytes - usable_bytes_;
  if (auto outcome = populate(static_cast<char*>(host_.get()) + usable_bytes_, more_bytes); !outcome)
    return outcome;
  if (is_pinned_) {
    if (auto outcome = pin(usable_bytes_, more_bytes); !outcome) return outcome;
  }
  usable_bytes_ = length_bytes;
  return {};
}

Outcome GrowingBuffer::pin(size_t offset_bytes, size_t length_bytes) {
  const CudaApi& cuda = *find_cuda();
  const RelaxedCapture relaxed(cuda);
  void* const part = static_cast<char*>(host_.get()) + offset_bytes;
  CUresult result =
      cuda.cuMemHostRegister_v2(part, length_bytes, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP);
  if (result == CUDA_SUCCESS) {
    pinned_parts_.get().push_back(part);
    CUdeviceptr device = 0;
    result = cuda.cuMemHostGetDevicePointer_v2(&device, part, 0);
    if (result == CUDA_SUCCESS && device == get_cuda_address(part)) return {};
    pinned_parts_.get().pop_back();
    cuda.cuMemHostUnregister(part);
  }
  return fail(Status::kCuda, "buffer: cannot pin host memory: %s (result %d, length %zu bytes)",
              describe_cuda(result), result, length_bytes);
}

GrowingBuffer::~GrowingBuffer() {
  if (host_ == nullptr || whole_.host() != nullptr) return;
  for (void* part : pinned_parts_.get()) {
    const CudaApi& cuda = *find_cuda();
    const RelaxedCapture relaxed(cuda);
    const OwningContext owner(cuda, get_cuda_address(part));
    if (!owner) continue;  // the application destroyed the context, and the driver unpinned its memory
    const CUresult result = cuda.cuMemHostUnregister(part);
    if (result != CUDA_SUCCESS)
      log_warn("buffer: cannot unpin host memory: %s (result %d)", describe_cuda(result), result);
  }
  munmap(host_, max_bytes_);
}

}  // namespace verbena::base
