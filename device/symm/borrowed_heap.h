// A heap that another library has allocated and mapped. If a context uses such a heap, the context's windows
// and the words (signals and barriers) of its teams lie in the heap. The other library's network reaches the
// ranks whose memory is not mapped.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/movable.h"
#include "base/status.h"
#include "base/virtual_memory.h"
#include "verbena/symm_abi.h"

namespace verbena::symm {

inline constexpr uint64_t kBorrowedUnitBytes = 512;  // alignment of windows

// Calls `release` once, when the lease is destroyed, to notify the other library that the heap is no longer
// used. A lease is movable.
class HeapLease {
 public:
  using Release = void (*)(void* argument);

  HeapLease() = default;
  HeapLease(Release release, void* argument) : release_(release), argument_(argument) {}
  HeapLease(HeapLease&&) noexcept = default;
  HeapLease& operator=(HeapLease&&) noexcept = default;
  ~HeapLease() {
    if (release_ != nullptr) release_(argument_);
  }

 private:
  base::Movable<Release> release_;
  base::Movable<void*> argument_;
};

// The backend that owns a heap, as kernels see it; by default Verbena.
struct HeapBackend {
  int32_t type = kSymmVerbena;
  // True if the backend's network supports the world team only. In all other teams, the memory of all members
  // must then be mapped.
  bool is_world_only = false;
  uint64_t multicast_delta = 0;      // see SymmContext
  std::vector<std::byte> extension;  // data that follows SymmContext in a context's memory
};

struct BorrowedHeap {
  HeapBackend backend;
  std::byte* begin = nullptr;
  uint64_t length_bytes = 0;
  // The length of the range of symmetric addresses, at least length_bytes. The range is longer than the heap
  // if other symmetric memory follows the heap.
  uint64_t reach_bytes = 0;
  std::vector<int64_t> deltas;  // by rank; see SymmContext
  // Memory of the application, which kernels may access by its own addresses.
  struct Alias {
    const void* begin;
    uint64_t length_bytes;
    const void* symmetric;
  };
  std::vector<Alias> aliases;
  HeapLease lease;

  // Checks this rank's heap. The heap must belong to the GPU `user`, and must have space for the
  // `words_bytes` bytes of the teams' words.
  base::Outcome check(base::MemoryOwner user, uint32_t rank, uint32_t count_ranks,
                      uint64_t words_bytes) const;
};

}  // namespace verbena::symm
