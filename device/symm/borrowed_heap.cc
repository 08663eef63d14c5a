#include "device/symm/borrowed_heap.h"

#include "base/log.h"

namespace verbena::symm {
using base::fail;
using base::Status;

namespace {

constexpr uint64_t kAlignmentBytes = 128;  // alignment of a heap's begin, which is a line of a GPU's cache

}  // namespace

base::Outcome BorrowedHeap::check(base::MemoryOwner user, uint32_t rank, uint32_t count_ranks,
                                  uint64_t words_bytes) const {
  if (begin == nullptr)
    return fail(Status::kInvalidArgument, "symm: rank %u: verbena_heap::begin is NULL", rank);
  if (reinterpret_cast<uintptr_t>(begin) % kAlignmentBytes != 0) {
    return fail(Status::kInvalidArgument,
                "symm: rank %u: verbena_heap::begin %p is not aligned to %llu bytes", rank,
                static_cast<const void*>(begin), static_cast<unsigned long long>(kAlignmentBytes));
  }
  const int owning_gpu = base::find_owning_gpu(begin);
  if (owning_gpu != base::kNoGpu && owning_gpu != user.gpu) {
    return fail(Status::kInvalidArgument,
                "symm: rank %u: the heap is on GPU %d, but GPU %d is current (-1 means none). Call "
                "cudaSetDevice() first",
                rank, owning_gpu, user.gpu);
  }
  if (length_bytes < words_bytes) {
    return fail(
        Status::kInvalidArgument,
        "symm: rank %u: the heap of %llu bytes is too small. The signals and barriers alone need %llu "
        "bytes (verbena_heap_words), depending on VERBENA_SYMM_TEAMS",
        rank, static_cast<unsigned long long>(length_bytes), static_cast<unsigned long long>(words_bytes));
  }
  if (deltas.size() != count_ranks) {
    return fail(Status::kInvalidArgument,
                "symm: rank %u: verbena_heap has %zu deltas, but must have one for each of the %u ranks",
                rank, deltas.size(), count_ranks);
  }
  if (deltas[rank] != 0) {
    return fail(Status::kInvalidArgument,
                "symm: rank %u: verbena_heap has delta %lld for this rank itself, but this delta must be 0",
                rank, static_cast<long long>(deltas[rank]));
  }
  return {};
}

}  // namespace verbena::symm
