// The common part of heaps of other libraries: one rank's part in making a context over such a heap.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "verbena/symm_abi.h"
#include "verbena/verbena.hpp"

namespace verbena::backends {

// The context that is made over it owns it and destroys it.
class SharedHeap {
 public:
  SharedHeap(int32_t type, uint32_t rank, uint32_t count_ranks)
      : type_(type), rank_(rank), deltas_(count_ranks, kSymmOutOfReach) {}
  virtual ~SharedHeap() = default;
  SharedHeap(const SharedHeap&) = delete;
  SharedHeap& operator=(const SharedHeap&) = delete;

  // Copies the `bytes_each` at `mine` to every rank's `all`, in the order of the ranks. Throws.
  virtual void gather(const void* mine, void* all, size_t bytes_each) = 0;

  // Collective: runs `step` on every rank; if it throws on any, all throw.
  template <typename Step>
  void agree(const char* name, const Step& step);

  uint32_t rank() const { return rank_; }
  uint32_t count_ranks() const { return static_cast<uint32_t>(deltas_.size()); }

 protected:
  // The heap's length for windows of `window_bytes` and the words of the teams.
  size_t measure(size_t window_bytes) const { return verbena_heap_words(count_ranks()) + window_bytes; }
  // `theirs` is the address at which this rank's loads and stores reach the other rank's memory at `begin`.
  void set_peer(uint32_t rank, const void* begin, const void* theirs) {
    deltas_[rank] = static_cast<const char*>(theirs) - static_cast<const char*>(begin);
  }

  int32_t type_;
  uint32_t rank_;
  void* begin_ = nullptr;
  size_t length_bytes_ = 0;
  size_t reach_bytes_ = 0;  // as verbena_heap has it
  bool is_world_only_ = false;
  std::vector<char> extension_;
  std::vector<verbena_alias> aliases_;

 private:
  friend verbena_context* make_context(std::unique_ptr<SharedHeap> heap);
  std::vector<int64_t> deltas_;
};

// Collective. Makes the context over `heap`, which is complete. The context owns the heap; if the call fails,
// the heap is destroyed at once.
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
