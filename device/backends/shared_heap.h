// Base class for heaps of other libraries. It does one rank's part of the creation of a context over such a
// heap.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "verbena/symm_abi.h"
#include "verbena/verbena.hpp"

namespace verbena::backends {

// The context over the heap owns this object and destroys it.
class SharedHeap {
 public:
  SharedHeap(int32_t type, uint32_t rank, uint32_t count_ranks)
      : type_(type), rank_(rank), deltas_(count_ranks, kSymmOutOfReach) {}
  virtual ~SharedHeap() = default;
  SharedHeap(const SharedHeap&) = delete;
  SharedHeap& operator=(const SharedHeap&) = delete;

  // Gathers `bytes_each` bytes at `mine` from every rank into `all`, in rank order. Collective. Throws
  // Failure.
  virtual void gather(const void* mine, void* all, size_t bytes_each) = 0;

  // Runs `step` on every rank. Collective. If `step` throws on one rank, agree() throws on all ranks.
  template <typename Step>
  void agree(const char* name, const Step& step);

  uint32_t rank() const { return rank_; }
  uint32_t count_ranks() const { return static_cast<uint32_t>(deltas_.size()); }

 protected:
  // Returns the length of a heap for windows of `window_bytes` and the teams' words.
  size_t measure(size_t window_bytes) const { return verbena_heap_words(count_ranks()) + window_bytes; }
  // Records that this rank has mapped the memory that `rank` has at the offset of `begin`. `theirs` is the
  // address at which the memory is mapped.
  void set_peer(uint32_t rank, const void* begin, const void* theirs) {
    deltas_[rank] = static_cast<const char*>(theirs) - static_cast<const char*>(begin);
  }

  int32_t type_;
  uint32_t rank_;
  void* begin_ = nullptr;
  size_t length_bytes_ = 0;
  size_t reach_bytes_ = 0;  // see verbena_heap
  bool is_world_only_ = false;
  std::vector<char> extension_;
  std::vector<verbena_alias> aliases_;

 private:
  friend verbena_context* make_context(std::unique_ptr<SharedHeap> heap);
  std::vector<int64_t> deltas_;
};

// Creates the context over a complete heap. Collective. The context owns the heap; if the call fails, the
// heap is destroyed at once.
verbena_context* make_context(std::unique_ptr<SharedHeap> heap);

template <typename Step>
void SharedHeap::agree(const char* name, const Step& step) {
  std::string cause;
  verbena_result result = VERBENA_SUCCESS;
  try {
    step();
  } catch (const Failure& failure) {
    result = failure.result();
    cause = failure.what();
  } catch (const std::exception& error) {
    result = VERBENA_INTERNAL_ERROR;
    cause = error.what();
  }
  const auto mine = static_cast<int32_t>(result);
  std::vector<int32_t> all(count_ranks());
  gather(&mine, all.data(), sizeof(mine));
  if (result != VERBENA_SUCCESS) throw Failure(result, cause);
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank] != VERBENA_SUCCESS)
      throw Failure(static_cast<verbena_result>(all[rank]),
                    std::string(name) + " failed on rank " + std::to_string(rank));
  }
}

}  // namespace verbena::backends
