// A heap that another library has allocated and mapped, over which a context is made: its windows and its
// teams' words lie in it, and that library's network leads where loads and stores do not.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/status.h"
#include "base/virtual_memory.h"
#include "verbena/symm_abi.h"

namespace verbena::symm {

inline constexpr uint64_t kBorrowedUnitBytes = 512;  // windows begin at multiples of it

// Tells the lender once, with its end, that nobody uses the heap any more. Movable.
class HeapLease {
 public:
  using Release = void (*)(void* argument);

  HeapLease() = default;
  HeapLease(Release release, void* argument) : release_(release), argument_(argument) {}
  HeapLease(HeapLease&& other) noexcept
      : release_(std::exchange(other.release_, nullptr)), argument_(other.argument_) {}
  HeapLease& operator=(HeapLease&& other) noexcept {
    std::swap(release_, other.release_);
    std::swap(argument_, other.argument_);
    return *this;
  }
  ~HeapLease() {
    if (release_ != nullptr) release_(argument_);
  }

 private:
  Release release_ = nullptr;
  void* argument_ = nullptr;
};

// Whose a heap is, as kernels are told; by default our own.
struct HeapBackend {
  int32_t type = kSymmVerbena;
  // Its network knows the words of the world alone: there is no other team with members out of reach.
  bool is_world_only = false;
  uint64_t multicast_delta = 0;      // as SymmContext's
  std::vector<std::byte> extension;  // what its contexts have behind SymmContext
};

struct BorrowedHeap {
  HeapBackend backend;
  std::byte* begin = nullptr;
  uint64_t length_bytes = 0;
  // Behind the heap, where other memory is that is at the same place of all ranks; at least the length.
  uint64_t reach_bytes = 0;
  std::vector<int64_t> deltas;  // of each rank, as SymmContext's
  // Memory of the application's, by whose own addresses kernels find it.
  struct Alias {
    const void* begin;
    uint64_t length_bytes;
    const void* symmetric;
  };
  std::vector<Alias> aliases;
  HeapLease lease;

  // Whether this rank's can be used, by that GPU and with so many bytes of words for teams at its begin.
  base::Outcome check(base::MemoryOwner user, uint32_t rank, uint32_t count_ranks,
                      uint64_t words_bytes) const;
};

}  // namespace verbena::symm
