#include "device/message_queue/ring_memory.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <ctime>
#include <utility>

#include "base/cuda_api.h"
#include "base/cuda_driver.h"
#include "base/file_length.h"
#include "base/log.h"

namespace verbena::message_queue {
namespace {

constexpr uint64_t kPageBytes = 4096;
// With these seals, no process can truncate the memory that other processes have mapped.
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

uint64_t round_up(uint64_t value, uint64_t grain) {
  return (value + grain - 1) / grain * grain;
}

long call_futex(const std::atomic<uint32_t>& word, int operation, uint32_t value, const timespec* until) {
  return syscall(SYS_futex, &word, operation, value, until, nullptr, FUTEX_BITSET_MATCH_ANY);
}

}  // namespace

bool RingShape::is_valid() const {
  return count_readers >= 1 && count_readers <= kMaxReaders && count_slots >= 2 && count_slots <= kMaxSlots &&
         chunk_bytes >= 1 && chunk_bytes <= kMaxRingBytes / count_slots;
}

uint64_t RingShape::stride_bytes() const {
  return round_up(kLineBytes + chunk_bytes, 2 * kLineBytes);
}

uint64_t RingShape::slots_offset_bytes() const {
  return sizeof(RingControl) + count_readers * sizeof(ReaderLine);
}

uint64_t RingShape::length_bytes() const {
  return round_up(slots_offset_bytes() + count_slots * stride_bytes(), kPageBytes);
}

void RingMemory::fence() {
#ifdef __SANITIZE_THREAD__
  // ThreadSanitizer does not support fences. Read-modify-write operations on a common word are as strong
  // here.
  static std::atomic<uint32_t> word{0};
  word.fetch_add(1, std::memory_order_seq_cst);
#else
  std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

SleepEnd RingMemory::sleep(const std::atomic<uint32_t>& word, uint32_t heard, int64_t deadline_ns) {
  const timespec until{deadline_ns / 1'000'000'000, deadline_ns % 1'000'000'000};
  const long rc = call_futex(word, FUTEX_WAIT_BITSET, heard, deadline_ns == kNoDeadline ? nullptr : &until);
  if (rc == 0 || errno == EAGAIN) return SleepEnd::kLookAgain;
  return errno == EINTR ? SleepEnd::kSignal : SleepEnd::kDeadline;
}

void RingMemory::wake(const std::atomic<uint32_t>& word) {
  call_futex(word, FUTEX_WAKE, INT32_MAX, nullptr);
}

base::Result<SharedRing> SharedRing::create(const RingShape& shape) {
  SharedRing ring;
  ring.shape_ = shape;
  ring.file_.reset(memfd_create("verbena-queue", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!ring.file_ || base::set_file_length(ring.fd(), shape.length_bytes()) != 0 ||
      fcntl(ring.fd(), F_ADD_SEALS, kSeals) != 0) {
    return base::fail_errno(base::Status::kSystem, errno,
                            "queue: cannot allocate %llu bytes of shared memory",
                            static_cast<unsigned long long>(shape.length_bytes()));
  }
  if (auto mapped = ring.map(ring.fd()); !mapped) return mapped.error();
  return ring;
}

base::Result<SharedRing> SharedRing::open(base::FileDescriptor& file, const RingShape& shape) {
  struct stat status {};
  if (fstat(file.get(), &status) != 0)
    return base::fail_errno(base::Status::kSystem, errno,
                            "queue: cannot read the size of the writer's shared memory (fstat)");
  const bool is_whole = shape.is_valid() && static_cast<uint64_t>(status.st_size) == shape.length_bytes() &&
                        (fcntl(file.get(), F_GET_SEALS) & kSeals) == kSeals;
  if (!is_whole)
    return base::fail(base::Status::kRemote, "queue: the writer's shared memory does not match its handle");
  SharedRing ring;
  ring.shape_ = shape;
  if (auto mapped = ring.map(file.get()); !mapped) return mapped.error();
  ring.file_ = std::move(file);
  return ring;
}

base::Outcome SharedRing::map(int file) {
  void* const begin = mmap(nullptr, shape_->length_bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (begin == MAP_FAILED) {
    return base::fail_errno(base::Status::kSystem, errno, "queue: cannot map %llu bytes of shared memory",
                            static_cast<unsigned long long>(shape_->length_bytes()));
  }
  begin_ = static_cast<std::byte*>(begin);
  return {};
}

void SharedRing::unmap() {
  if (begin_ == nullptr) return;
  if (is_pinned_) base::find_cuda()->cuMemHostUnregister(begin_);
  munmap(begin_, shape_->length_bytes());
  begin_ = nullptr;
}

base::Outcome SharedRing::pin() {
  const base::CudaApi* const cuda = base::find_cuda();
  if (base::find_current_gpu() == base::kNoGpu || cuda->cuMemHostRegister_v2 == nullptr) {
    return base::fail(base::Status::kInvalidUsage,
                      "queue: cannot pin the shared memory, because no GPU is current in this thread. Call "
                      "cudaSetDevice() first");
  }
  const base::RelaxedCapture relaxed(*cuda);
  const auto result = cuda->cuMemHostRegister_v2(
      begin_, shape_->length_bytes(), cuda::CU_MEMHOSTALLOC_PORTABLE | cuda::CU_MEMHOSTALLOC_DEVICEMAP);
  if (result != cuda::CUDA_SUCCESS) {
    return base::fail(base::Status::kCuda, "queue: cannot pin the ring of %llu bytes: %s (result %d)",
                      static_cast<unsigned long long>(shape_->length_bytes()), base::describe_cuda(result),
                      result);
  }
  is_pinned_ = true;
  return {};
}

SharedRing::~SharedRing() {
  unmap();
}

}  // namespace verbena::message_queue
