#include "base/virtual_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/cuda_api.h"
#include "base/file_length.h"
#include "base/log.h"
#include "base/private_stream.h"

namespace verbena::base {
namespace {

uint64_t to_cuda(const std::byte* address) {
  return reinterpret_cast<uintptr_t>(address);
}
std::byte* from_cuda(CUdeviceptr address) {
  return reinterpret_cast<std::byte*>(static_cast<uintptr_t>(address));
}

Error fail_cuda(const char* what, CUresult result, uint64_t length_bytes) {
  return fail(Status::kCuda, "memory: %s: %s (result %d, length %llu bytes)", what, describe_cuda(result),
              result, static_cast<unsigned long long>(length_bytes));
}
Error fail_host(const char* what, uint64_t length_bytes) {
  return fail_errno(Status::kSystem, errno, "memory: %s: %llu bytes", what,
                    static_cast<unsigned long long>(length_bytes));
}

// Returns the driver if it has the virtual memory management that this file needs.
Result<const CudaApi*> find_mapping_cuda() {
  const CudaApi* cuda = find_cuda();
  if (cuda != nullptr && cuda->can_map()) return cuda;
  return fail(
      Status::kCuda,
      "memory: the CUDA driver has no virtual memory management. Install a driver for CUDA 11.2 or newer");
}

// Returns the properties of pieces: pinned, shareable, and accessible by NICs (GPUDirect RDMA) if the GPU
// supports it.
CUmemAllocationProp describe_piece(const CudaApi& cuda, int gpu) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, gpu};
  int reaches_nics = 0;
  CUdevice device = 0;
  if (cuda.cuDeviceGet(&device, gpu) == CUDA_SUCCESS &&
      cuda.cuDeviceGetAttribute(&reaches_nics, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED,
                                device) == CUDA_SUCCESS)
    properties.allocFlags.gpuDirectRDMACapable = reaches_nics != 0;
  return properties;
}

int open_memory_file() {
  return memfd_create("verbena", MFD_CLOEXEC | MFD_ALLOW_SEALING);
}

// Seals the memory, so that no process with the descriptor can truncate it. Otherwise an access after its end
// would raise SIGBUS.
bool seal(int file) {
  return fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0;
}
bool is_sealed(int file) {
  const int seals = fcntl(file, F_GET_SEALS);
  return seals >= 0 && (seals & F_SEAL_SHRINK) != 0;
}

}  // namespace

Result<uint64_t> measure_granularity(MemoryOwner owner) {
  if (owner.gpu == kNoGpu) return static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  const auto cuda = find_mapping_cuda();
  if (!cuda) return cuda.error();
  const CUmemAllocationProp properties = describe_piece(**cuda, owner.gpu);
  size_t bytes = 0;
  const CUresult result =
      (*cuda)->cuMemGetAllocationGranularity(&bytes, &properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
  if (result != CUDA_SUCCESS) return fail_cuda("cannot query the allocation granularity", result, 0);
  return uint64_t{bytes};
}

Result<AddressRange> AddressRange::reserve(MemoryOwner owner, uint64_t length_bytes) {
  AddressRange range;
  range.owner_ = owner;
  range.length_bytes_ = length_bytes;
  if (owner.gpu == kNoGpu) {
    void* begin = mmap(nullptr, length_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (begin == MAP_FAILED) return fail_host("cannot reserve addresses", length_bytes);
    range.begin_ = static_cast<std::byte*>(begin);
    return range;
  }
  const auto cuda = find_mapping_cuda();
  if (!cuda) return cuda.error();
  CUdeviceptr begin = 0;
  const CUresult result = (*cuda)->cuMemAddressReserve(&begin, length_bytes, 0, 0, 0);
  if (result != CUDA_SUCCESS) return fail_cuda("cannot reserve addresses", result, length_bytes);
  range.begin_ = from_cuda(begin);
  return range;
}

AddressRange::~AddressRange() {
  if (begin_ == nullptr) return;
  if (owner_->gpu == kNoGpu) {
    munmap(begin_, length_bytes_);
  } else {
    find_cuda()->cuMemAddressFree(to_cuda(begin_), length_bytes_);
  }
}

Result<MemoryPiece> MemoryPiece::allocate(MemoryOwner owner, uint64_t length_bytes) {
  MemoryPiece piece;
  piece.owner_ = owner;
  piece.length_bytes_ = length_bytes;
  if (owner.gpu == kNoGpu) {
    piece.file_.reset(open_memory_file());
    if (!piece.file_ || set_file_length(piece.file_.get(), length_bytes) != 0 || !seal(piece.file_.get()))
      return fail_host("cannot allocate host memory", length_bytes);
    return piece;
  }
  const auto cuda = find_mapping_cuda();
  if (!cuda) return cuda.error();
  const CUmemAllocationProp properties = describe_piece(**cuda, owner.gpu);
  const CUresult result = (*cuda)->cuMemCreate(&piece.handle_.get(), length_bytes, &properties, 0);
  if (result != CUDA_SUCCESS) return fail_cuda("cannot allocate GPU memory", result, length_bytes);
  return piece;
}

Result<MemoryPiece> MemoryPiece::open(MemoryOwner owner, int descriptor, uint64_t length_bytes) {
  MemoryPiece piece;
  piece.owner_ = owner;
  piece.length_bytes_ = length_bytes;
  if (owner.gpu == kNoGpu) {
    piece.file_.reset(fcntl(descriptor, F_DUPFD_CLOEXEC, 0));
    const off_t length = piece.file_ ? lseek(piece.file_.get(), 0, SEEK_END) : -1;
    if (length < 0) return fail_host("cannot import a peer's memory", length_bytes);
    if (!is_sealed(piece.file_.get()))
      return fail(Status::kRemote,
                  "memory: the memory that a peer shared is not sealed, so the peer could still truncate the "
                  "memory. Check that all ranks run the same build");
    if (static_cast<uint64_t>(length) >= length_bytes) return piece;
    return fail(Status::kRemote,
                "memory: a peer shared %lld bytes of memory but announced %llu bytes. Check that all ranks "
                "run the same build",
                static_cast<long long>(length), static_cast<unsigned long long>(length_bytes));
  }
  const auto cuda = find_mapping_cuda();
  if (!cuda) return cuda.error();
  void* const as_pointer = reinterpret_cast<void*>(static_cast<uintptr_t>(descriptor));
  const CUresult result = (*cuda)->cuMemImportFromShareableHandle(&piece.handle_.get(), as_pointer,
                                                                  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  if (result != CUDA_SUCCESS) return fail_cuda("cannot import a peer's GPU memory", result, length_bytes);
  return piece;
}

MemoryPiece::~MemoryPiece() {
  if (handle_ != 0) find_cuda()->cuMemRelease(handle_);
}

Result<FileDescriptor> MemoryPiece::share() const {
  if (owner_->gpu == kNoGpu) {
    FileDescriptor copy(fcntl(file_.get(), F_DUPFD_CLOEXEC, 0));
    if (!copy) return fail_host("cannot share host memory", length_bytes_);
    return copy;
  }
  int descriptor = -1;
  const CUresult result = find_cuda()->cuMemExportToShareableHandle(
      &descriptor, handle_, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  if (result != CUDA_SUCCESS) return fail_cuda("cannot share GPU memory", result, length_bytes_);
  return FileDescriptor(descriptor);
}

Result<FoundPiece> find_piece(const void* address) {
  const int gpu = find_owning_gpu(address);
  const CudaApi* cuda = find_cuda();
  if (gpu == kNoGpu || !cuda->can_map()) {
    return fail(Status::kInvalidUsage,
                "memory: %p cannot be shared with other processes, because the address is not in GPU memory",
                address);
  }
  FoundPiece found;
  CUdeviceptr begin = 0;
  size_t length_bytes = 0;
  CUmemAllocationProp properties{};
  const auto* at = static_cast<const std::byte*>(address);
  if (cuda->cuMemRetainAllocationHandle(&found.piece.handle_.get(), const_cast<void*>(address)) !=
          CUDA_SUCCESS ||
      cuda->cuMemGetAllocationPropertiesFromHandle(&properties, found.piece.handle_) != CUDA_SUCCESS ||
      (properties.requestedHandleTypes & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) == 0) {
    return fail(Status::kInvalidUsage,
                "memory: %p cannot be shared with other processes, because the memory was not allocated by "
                "cuMemCreate with a POSIX file descriptor. Allocate the memory with ncclMemAlloc, or with "
                "PyTorch's expandable segments; memory of cudaMalloc cannot be shared",
                address);
  }
  const CUresult result = cuda->cuMemGetAddressRange_v2(&begin, &length_bytes, to_cuda(at));
  if (result != CUDA_SUCCESS)
    return fail_cuda("cannot find the allocation that contains the address", result, 0);
  found.piece.owner_ = MemoryOwner{gpu};
  found.piece.length_bytes_ = length_bytes;
  found.begin = from_cuda(begin);
  return found;
}

Result<MappedPiece> MappedPiece::map(const MemoryPiece& piece, MemoryOwner user, std::byte* address) {
  MappedPiece mapped;
  mapped.user_ = user;
  if (user.gpu == kNoGpu) {
    void* const begin = mmap(address, piece.length_bytes(), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
                             piece.file_.get(), 0);
    if (begin == MAP_FAILED) return fail_host("cannot map host memory", piece.length_bytes());
    mapped.begin_ = address;
    mapped.length_bytes_ = piece.length_bytes();
    return mapped;
  }
  const CudaApi& cuda = *find_cuda();
  CUresult result = cuda.cuMemMap(to_cuda(address), piece.length_bytes(), 0, piece.handle_, 0);
  if (result != CUDA_SUCCESS) return fail_cuda("cannot map GPU memory", result, piece.length_bytes());
  mapped.begin_ = address;
  mapped.length_bytes_ = piece.length_bytes();
  const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, user.gpu}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  result = cuda.cuMemSetAccess(to_cuda(address), piece.length_bytes(), &access, 1);
  if (result != CUDA_SUCCESS)
    return fail_cuda("this GPU cannot access the memory", result, piece.length_bytes());
  return mapped;
}

MappedPiece::~MappedPiece() {
  if (begin_ == nullptr) return;
  if (user_->gpu == kNoGpu) {
    // Keeps the addresses reserved.
    static_cast<void>(mmap(begin_, length_bytes_, PROT_NONE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0));
  } else {
    find_cuda()->cuMemUnmap(to_cuda(begin_), length_bytes_);
  }
}

FileDescriptor MappedPiece::export_dmabuf() const {
  int descriptor = -1;
  const CudaApi* cuda = user_->gpu == kNoGpu ? nullptr : find_cuda();
  if (cuda == nullptr || cuda->cuMemGetHandleForAddressRange == nullptr) return {};
  if (cuda->cuMemGetHandleForAddressRange(&descriptor, to_cuda(begin_), length_bytes_,
                                          CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0) != CUDA_SUCCESS)
    return {};
  return FileDescriptor(descriptor);
}

Outcome fill_zero(MemoryOwner user, std::byte* begin, uint64_t length_bytes) {
  if (user.gpu == kNoGpu) {
    std::memset(begin, 0, length_bytes);
    return {};
  }
  const CudaApi& cuda = *find_cuda();
  const RelaxedCapture relaxed(cuda);
  const CUresult result = PrivateStream(cuda).run(
      [&](CUstream stream) { return cuda.cuMemsetD8Async(to_cuda(begin), 0, length_bytes, stream); });
  if (result != CUDA_SUCCESS) return fail_cuda("cannot clear GPU memory", result, length_bytes);
  return {};
}

Outcome read_memory(MemoryOwner user, const std::byte* begin, void* to, uint64_t length_bytes) {
  if (user.gpu == kNoGpu) {
    std::memcpy(to, begin, length_bytes);
    return {};
  }
  const CudaApi& cuda = *find_cuda();
  const RelaxedCapture relaxed(cuda);
  CUdevice device = 0;
  CUcontext context = nullptr, popped = nullptr;
  CUresult result = cuda.cuDeviceGet(&device, user.gpu);
  if (result == CUDA_SUCCESS) result = cuda.cuDevicePrimaryCtxRetain(&context, device);
  if (result != CUDA_SUCCESS) return fail_cuda("no CUDA context for the GPU", result, length_bytes);
  result = cuda.cuCtxPushCurrent_v2(context);
  if (result == CUDA_SUCCESS) {
    result = PrivateStream(cuda).run(
        [&](CUstream stream) { return cuda.cuMemcpyDtoHAsync_v2(to, to_cuda(begin), length_bytes, stream); });
    cuda.cuCtxPopCurrent_v2(&popped);
  }
  cuda.cuDevicePrimaryCtxRelease_v2(device);
  if (result != CUDA_SUCCESS) return fail_cuda("cannot read GPU memory", result, length_bytes);
  return {};
}

}  // namespace verbena::base
